"""The session of the example, cell by cell, as an agent writes it: code, and what must come back.

`expect` are regular expressions that the result's text must match, in any order; `interrupt_after`
is output after which the cell is interrupted.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """One cell and what its result must be."""

    title: str
    code: str
    expect: tuple[str, ...] = ()
    status: str = "ok"
    images: int = 0
    interrupt_after: str | None = None
    counted: bool = field(default=True)


CELLS = (
    Cell(
        "Look at what is here",
        "import os, sys\nprint(sorted(os.listdir('.')))\nprint(available())",
        (r"notes\.txt", r"\['breast_cancer', 'diabetes', 'digits', 'iris', 'wine'\]"),
    ),
    Cell(
        "Read the task",
        "print(open('notes.txt').read())",
        (r"Which measurements separate malignant from benign tumours\?",),
    ),
    Cell(
        "Load the data",
        "cancer = load('breast_cancer')\ncancer.shape",
        (r"^=> \(500, 31\)$",),
    ),
    Cell(
        "Get an overview",
        "print(overview(cancer.iloc[:, :3]))",
        (r"mean radius: float64, 0 missing, \d+ distinct",),
    ),
    Cell(
        "Count the classes",
        "cancer['target'].value_counts().sort_index()",
        (r"=> target", r"\n0 +\d+\n1 +\d+"),
    ),
    Cell(
        "Summarise by class",
        "cancer.groupby('target')[['mean radius', 'mean texture']].mean().round(2)",
        (r"mean radius +mean texture", r"\n0 +1\d\.\d+ +2\d\.\d+"),
    ),
    Cell(
        "Compute effect sizes",
        """
import numpy as np

def effect(column):
    a, b = (cancer.loc[cancer.target == t, column] for t in (0, 1))
    spread = np.sqrt((a.var() + b.var()) / 2)
    return float((a.mean() - b.mean()) / spread)

effects = {c: effect(c) for c in cancer.columns if c != 'target'}
best = sorted(effects, key=effects.get, reverse=True)[:5]
best
""",
        (r"worst concave points", r"^=> \["),
    ),
    Cell(
        "Plot the best measurement",
        """
import matplotlib.pyplot as plt

for t, label in ((0, 'malignant'), (1, 'benign')):
    plt.hist(cancer.loc[cancer.target == t, best[0]], bins=20, alpha=0.6, label=label)
plt.xlabel(best[0])
plt.legend()
plt.show()
""",
        images=1,
    ),
    Cell(
        "Correlate",
        "corr = cancer[best].corr().round(2)\ncorr",
        (r"1\.00?",),
    ),
    Cell(
        "Write the correlations to a file",
        "corr.to_csv('correlations.csv')\nos.path.getsize('correlations.csv') > 100",
        (r"^=> True$",),
    ),
    Cell(
        "Read them back",
        """
import pandas as pd

again = pd.read_csv('correlations.csv', index_col=0)
assert again.round(2).equals(corr.round(2)), again - corr
list(again.columns) == best
""",
        (r"^=> True$",),
    ),
    Cell(
        "Split the data",
        """
from sklearn.model_selection import train_test_split

X, y = cancer[best], cancer['target']
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
len(X_train), len(X_test)
""",
        (r"^=> \(375, 125\)$",),
    ),
    Cell(
        "Fit a model, with a mistake",
        "model = LogisticRegression(max_iter=1000).fit(X_train, y_train)",
        (r"NameError: name 'LogisticRegression' is not defined", r"Cell In\[13\], line 1"),
        status="error",
    ),
    Cell(
        "Fix it",
        """
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
model.fit(X_train, y_train)
round(float(model.score(X_test, y_test)), 2) > 0.85
""",
        (r"^=> True$",),
    ),
    Cell(
        "Look at the confusion",
        "from sklearn.metrics import confusion_matrix\n"
        "confusion_matrix(y_test, model.predict(X_test)).sum()",
        (r"^=> (np\.int64\(125\)|125)$",),
    ),
    Cell(
        "Cross-validate",
        """
from sklearn.model_selection import cross_val_score

scores = cross_val_score(model, X, y, cv=5)
print(f'{len(scores)} folds, accuracy {scores.mean():.2f} ± {scores.std():.2f}')
""",
        (r"5 folds, accuracy 0\.9\d ± 0\.0\d",),
    ),
    Cell(
        "Search for too long",
        """
trials = 0
while True:
    trials += 1
    rows = np.random.default_rng(trials).integers(0, len(X), len(X))
    model.fit(X.iloc[rows], y.iloc[rows])
    print('bootstrap', trials, flush=True)
""",
        (r"bootstrap 1\n", r"\[interrupted", r"names defined so far are kept"),
        status="interrupted",
        interrupt_after="bootstrap 3",
    ),
    Cell(
        "See how far it came",
        "trials >= 3",
        (r"^=> True$",),
    ),
    Cell(
        "Await something",
        """
import asyncio

async def measure(n):
    await asyncio.sleep(0)
    return n * n

await asyncio.gather(*(measure(n) for n in range(4)))
""",
        (r"^=> \[0, 1, 4, 9\]$",),
    ),
    Cell(
        "Run asyncio the other way",
        "asyncio.run(measure(7))",
        (r"^=> 49$",),
    ),
    Cell(
        "Use the shell",
        "!wc -l < correlations.csv\n!echo to-stderr >&2",
        (r"^6$", r"to-stderr"),
    ),
    Cell(
        "Capture the shell's output",
        "lines = !head -1 correlations.csv\nlines[0].count(',')",
        (r"^=> 5$",),
    ),
    Cell(
        "Start a subprocess",
        "import subprocess\n"
        "subprocess.run([sys.executable, '-c', 'print(6 * 7)'], check=True)\nprint('after')",
        (r"^42\nafter$",),
    ),
    Cell(
        "Show progress",
        "import time\n"
        "for i in range(101):\n    print(f'\\rfitting {i:3d} %', end='', flush=True)\nprint()",
        (r"^fitting 100 %$",),
    ),
    Cell(
        "Cluster another data set",
        """
from sklearn.cluster import KMeans

iris = load('iris')
labels = KMeans(3, n_init=5, random_state=0).fit_predict(iris.drop(columns='target'))
pd.crosstab(iris.target, labels).shape
""",
        (r"^=> \(3, 3\)$",),
    ),
    Cell(
        "Print a great deal",
        "for n in range(20_000):\n    print('row', n, 'x' * 40)",
        (r"^row 0 x+$", r"row 19999 x+", r"(?i)20,?000|omitted|shown"),
    ),
    Cell(
        "Exit by mistake",
        "sys.exit('done?')",
        (r"SystemExit: done\?",),
        status="error",
    ),
    Cell(
        "Go on: names are still there",
        "len(effects), sorted(os.listdir('.'))",
        (r"=> \(30, \['.*correlations\.csv.*notes\.txt.*\]\)",),
    ),
    Cell(
        "Ask for a data set that is not there",
        "load('titanic')",
        (r"KeyError: \"no data set 'titanic'", r"extensions\.py"),
        status="error",
    ),
    Cell(
        "Write the report",
        """
report = f'Best measurement: {best[0]} (d = {effects[best[0]]:.1f}); accuracy {scores.mean():.0%}.'
open('report.md', 'w').write(report)
print(report)
""",
        (r"Best measurement: worst \w+ ?\w* \(d = \d\.\d\); accuracy 9\d%\.",),
    ),
)

FILES = {
    "notes.txt": {
        "text": "Which measurements separate malignant from benign tumours?\nReport to report.md.\n"
    }
}
