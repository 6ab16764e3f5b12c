"""Every figure in the list is read from somewhere."""

import re
from pathlib import Path

from lakestream import metrics
from lakestream.assembly import publishing


def test_every_figure_is_published() -> None:
    source = Path(publishing.__file__).read_text()
    declared = {name for name, value in vars(metrics).items() if isinstance(value, metrics.Figure)}
    published = set(re.findall(r"\bm\.([A-Z_]+)\b", source))
    assert declared == published
