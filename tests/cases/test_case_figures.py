"""A figure appears once: however it is shown, and only in the cell that shows it."""

from __future__ import annotations

import pytest
from call_events import outputs

from replsvc.session import Session

pytestmark = pytest.mark.needs("data")

PLOT = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); line = ax.plot([1, 3, 2])\n"


async def images(session: Session, code: str) -> int:
    """Images in the result, which must be those in the log."""
    call = await session.run(code)
    assert call.status == "ok", call.text
    kept = [event for event in await outputs(session, call) if "image/png" in str(event.data)]
    shown = [part for part in call.content if part.type == "image"]
    assert len(shown) == len(kept)
    assert bool(call.cost.image_px) == bool(shown)
    return len(shown)


@pytest.mark.parametrize(
    "code",
    [
        "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])",
        PLOT,
        PLOT + "plt.show()",
        PLOT + "fig",
        PLOT + "plt.show()\nfig",
        PLOT + "display(fig)",
        PLOT + "display(fig)\nfig",
        PLOT + "display(fig)\nplt.show()",
        PLOT + "plt.close(fig)\nfig",
        PLOT + "fig.show() if False else plt.show()\nplt.show()",
        PLOT + "get_ipython().display_formatter.format(fig)\nNone",
    ],
    ids=[
        *("plot", "subplots", "show", "value", "show and value", "display", "display and value"),
        *("display and show", "closed and value", "shown twice", "formatted"),
    ],
)
async def test_a_figure_appears_once_however_it_is_shown(session: Session, code: str) -> None:
    assert await images(session, code) == 1
    assert await images(session, "1 + 1") == 0


async def test_a_figure_that_changed_in_between_appears_again(session: Session) -> None:
    assert await images(session, PLOT + "plt.show()\nline = ax.plot([5, 1])\nfig") == 2


async def test_two_figures_that_look_alike_both_appear(session: Session) -> None:
    assert await images(session, PLOT + PLOT) == 2


async def test_a_later_cell_may_show_it_again(session: Session) -> None:
    assert await images(session, PLOT) == 1
    assert await images(session, "fig") == 1
    assert await images(session, "1") == 0


async def test_a_plot_before_an_error_is_kept(session: Session) -> None:
    call = await session.run(PLOT + "1 / 0")
    assert [part.type for part in call.content] == ["text", "image"]
    assert call.text.endswith("ZeroDivisionError: division by zero")


async def test_a_figure_that_is_a_value_says_so_in_text_too(session: Session) -> None:
    call = await session.run(PLOT + "plt.show()\nfig")
    assert call.text == "=> <Figure size 640x480 with 1 Axes>"
    assert (await session.run("_ is fig")).text == "=> True"


async def test_a_display_that_is_updated_shows_its_last_figure(session: Session) -> None:
    code = (
        PLOT + "handle = display(fig, display_id=True)\nline = ax.plot([5, 1])\nhandle.update(fig)"
    )
    assert [part.type for part in (await session.run(code)).content] == ["image"]


async def test_a_large_figure_is_downscaled_for_the_model_and_whole_in_the_log(
    session: Session,
) -> None:
    call = await session.run(PLOT + "fig.set_size_inches(40, 10); fig.set_dpi(100)")
    (image,) = (part for part in call.content if part.type == "image")
    assert image.mime_type == "image/png"
    assert 1_568 * 300 < call.cost.image_px < 1_568 * 500
    (event,) = await outputs(session, call)
    assert len(event.data["data"]["image/png"]) > len(image.data)


async def test_500_short_plotting_cells_each_give_one_image_and_keep_nothing(
    session: Session,
) -> None:
    await session.run(
        "import gc, resource, matplotlib.pyplot as plt, matplotlib.figure\n"
        "plt.rcParams.update({'figure.figsize': (1, 1), 'figure.dpi': 40})"
    )
    counted = (
        "gc.collect(); figures = sum(isinstance(o, matplotlib.figure.Figure) "
        "for o in gc.get_objects()); (figures, len(plt.get_fignums()))"
    )
    resident = "int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize() >> 20"
    sizes = []
    for n in range(500):
        call = await session.run(f"line = plt.plot([1, {n}, 2])")
        assert [part.type for part in call.content] == ["image"], (n, call.text)
        if n in (50, 499):
            await session.run("del line")
            assert (await session.run(counted)).text in ("=> (0, 0)", "=> (1, 0)")
            sizes.append(int((await session.run(resident)).text.removeprefix("=> ")))
    assert sizes[1] - sizes[0] < 24, sizes
