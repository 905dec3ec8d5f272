"""The two extensions of the data-analysis example: one module-based with opts, one inline.

    replsvc serve --ext examples/data_analysis/extensions.py ...

makes both available to sessions: `datasets` (with its opts) and `house_style`.
"""

from replsvc import Extension, quote


class datasets:  # noqa: N801 - the name that requests select it by
    """Module-based: scikit-learn's bundled data sets as data frames, a bounded number of rows."""

    @staticmethod
    def code(opts):
        """Setup code: `load(name)` and `available()` appear in the kernel."""

        def body(max_rows, seed):
            import pandas
            from sklearn import datasets as _bundled

            _loaders = {
                "breast_cancer": _bundled.load_breast_cancer,
                "diabetes": _bundled.load_diabetes,
                "digits": _bundled.load_digits,
                "iris": _bundled.load_iris,
                "wine": _bundled.load_wine,
            }

            def available() -> list:
                """Names that `load` takes."""
                return sorted(_loaders)

            def load(name: str) -> pandas.DataFrame:
                """The data set as a frame with a `target` column, shuffled."""
                if name not in _loaders:
                    raise KeyError(f"no data set {name!r}; there are {', '.join(available())}")
                frame = _loaders[name](as_frame=True).frame
                return frame.sample(frac=1, random_state=seed).head(max_rows).reset_index(drop=True)

        return quote(body, max_rows=opts.get("max_rows", 10_000), seed=opts.get("seed", 0))

    @staticmethod
    def description(opts):
        """What the agent is told of it."""
        return (
            "## Data sets\n"
            "- `available()`: names of the bundled data sets\n"
            f"- `load(name)`: one as a DataFrame with `target`, at most "
            f"{opts.get('max_rows', 10_000)} rows, shuffled"
        )


house_style = Extension(
    name="house_style",
    code='''
import matplotlib

matplotlib.rcParams.update({"figure.figsize": (4, 3), "figure.dpi": 72, "axes.grid": True})


def overview(frame):
    """One line a column: type, missing values, distinct values."""
    return "\\n".join(
        f"{name}: {column.dtype}, {int(column.isna().sum())} missing, {column.nunique()} distinct"
        for name, column in frame.items()
    )
''',
    description="- `overview(frame)`: types, missing and distinct values, one line a column",
)
