"""Rules and reports: QUA5xx."""

from __future__ import annotations

from cdc_lake.errors.root import CdcLakeError, install


class QualityError(CdcLakeError):
    """A rule or a report."""

    code = "QUA500"


class RuleStopped(QualityError):
    """A change breaks a rule with `on_fail: stop`; everything before its transaction is applied."""

    code = "QUA501"
    exit_code = 5
    hint = (
        "set the rule to `quarantine` or `warn`, or correct the rule, and run again; where it is `type_<column>`, "
        "set `misfit: quarantine`, or declare a type that has room"
    )


class RuleDoesNotFit(QualityError):
    """A rule cannot judge a column of that type, or its constants are no values of it."""

    code = "QUA502"
    exit_code = 3
    hint = "change the rule in the pipeline file, then run `cdc-lake validate`"


class RuleColumnMissing(QualityError):
    """A rule names a column the table does not have."""

    code = "QUA503"
    exit_code = 3
    hint = "name a column of the source table, or take the rule out, then run `cdc-lake validate`"


class QualityEngineMissing(QualityError):
    """Great Expectations is not installed here."""

    code = "QUA505"
    hint = "install the extra `quality` of cdc_lake, from where cdc_lake was installed"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=install("quality"))


class NotHeld(QualityError):
    """No change that keeps this key is held, so there is nothing to decide."""

    code = "QUA510"
    hint = "`cdc-lake held list` shows what is held, with keys"


class HoldStays(QualityError):
    """Held changes that nobody can let through, or give up, as they are."""

    code = "QUA511"
    hint = (
        "mend the row at the source, or the pipeline file and then `cdc-lake rebuild TABLE`; a TRUNCATE ends holds too"
    )


class DecidedOtherwise(QualityError):
    """The opposite was decided of these held changes, and comes into force with the next run."""

    code = "QUA512"
    hint = "`cdc-lake run` carries out what was decided; `cdc-lake held list` shows it"


class TruncateHeld(QualityError):
    """A transaction truncates a table of a group and is held: neither can be shown in part."""

    code = "QUA513"
    hint = (
        "correct the rule, or set it to `warn` until a run has passed the transaction; or take the table out of its "
        "group for that run"
    )


class GroupDisagrees(QualityError):
    """A transaction is to be held in one table of a group that another one has passed."""

    code = "QUA514"
    hint = (
        "set the rules back to what they were, or take the table out of its group, run and rebuild, and put it back: "
        "`cdc-lake explain QUA514`"
    )


class GroupWaits(QualityError):
    """A table waits because another one of its group cannot go on."""

    code = "QUA515"
    hint = "mend the table that it waits for: the same run tells its error"


class ReportNotWritten(QualityError):
    """The files of a report could not be written."""

    code = "QUA506"
    hint = "make the folder writable and free space on its disk; the data is not affected"


class CutWithheld(QualityError):
    """A cut was not promised: a rule over silver at it has reached the level of `quality.promise_below`."""

    code = "QUA507"
    exit_code = 5
    hint = "`cdc-lake report` shows what the rules found; correct the rows at the source or the rule, and promise again"
