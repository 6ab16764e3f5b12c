"""A table that others change while it is checked, again and again, is neither clean nor wrong."""

from lakestream.lake.verify.checker import _doubt
from lakestream.lake.verify.report import Finding, FindingKind, TopicReport


def test_rows_that_went_during_each_check_are_no_finding_but_nothing_is_called_clean() -> None:
    lost = Finding(kind=FindingKind.LOST, text="rows are lost")
    differs = Finding(kind=FindingKind.STREAM_DIFFERS, text="rows that consumers do not get")
    report = TopicReport(topic="busy", findings=[differs, lost])
    _doubt(report)
    assert report.findings == [lost] and "others changed the table" in report.unchecked


def test_what_is_wrong_whatever_others_do_stays_a_finding() -> None:
    report = TopicReport(topic="busy", findings=[Finding(kind=FindingKind.LOST, text="rows are lost")])
    _doubt(report)
    assert report.findings and not report.unchecked
