"""The drawing library of our pages: plotly.js with scatter, bar and pie charts, which lies with the package (MIT)."""

from __future__ import annotations

from importlib.resources import files


def plotly_script() -> str:
    """Return plotly.js as a script that may stand inside a page's ``<script>`` element."""
    source = files("levelhead.documents").joinpath("plotly-basic.min.js").read_text(encoding="utf-8")
    return source.replace("</script", "<\\/script")
