"""The slot: missing, taken, not ours, of no more use, or moved where it must not be: codes among SRC2xx."""

from __future__ import annotations

from cdc_lake.errors.root import ANEW, Retry
from cdc_lake.errors.source import SourceError


class SlotInvalidated(SourceError):
    """The server gave the slot up for a reason of its own, or it never had a position."""

    code = "SRC218"
    hint = f"the page of this code says what each reason means, and what to do first; then {ANEW}"


class WalGone(SlotInvalidated):
    """The server dropped WAL that the slot still needed."""

    code = "SRC204"
    hint = f"raise max_slot_wal_keep_size on the server; then {ANEW}"


class SlotMissing(SourceError):
    """Bronze was fed from a slot that is no longer there: what came after bronze's last position is not kept."""

    code = "SRC212"
    hint = f"a new slot cannot bring back what was between: {ANEW}"


class SlotActive(SourceError):
    """Another process reads the slot."""

    code = "SRC213"
    retry = Retry.LATER
    hint = "stop the other receiver; after a crash the server frees the slot within wal_sender_timeout"


class SlotForeign(SourceError):
    """A slot of this name exists, but it is not one this pipeline can have made or may take over."""

    code = "SRC214"
    hint = (
        "is the volume of `lake.path` mounted, and are `lake.path` and `bronze.path` as they were? put them back, and "
        "nothing is lost; if this lake is new, name another slot in `source.slot.name`: who owns this one may need it"
    )


class SlotAhead(SourceError):
    """The slot's confirmed position lies beyond what bronze holds: the changes between are missing."""

    code = "SRC215"
    hint = (
        "was an older lake put back? put the newer one back; otherwise the slot was recreated, or something else read "
        f"it: {ANEW}"
    )


class SlotOfOtherPlugin(SlotForeign):
    """The slot writes its changes by another output plugin than the one the pipeline reads."""

    code = "SRC219"
    hint = (
        "set `source.slot.plugin` to what the slot has; a new pipeline names another slot in `source.slot.name`; to "
        f"read the stream by the other plugin: {ANEW}"
    )


class SlotOfOtherDatabase(SlotForeign):
    """The slot carries the changes of another database of the same server."""

    code = "SRC229"
    hint = "check `source.database`, or name another slot in `source.slot.name`: names of slots are the server's"


class SlotTwoPhase(SlotForeign):
    """The slot sends transactions when they are prepared; the pipeline reads them at their COMMIT PREPARED."""

    code = "SRC236"
    hint = (
        "take it from the slot by copying the slot, and copying it back: the page of this code says how; or set "
        "`two_phase: true` in `source.decoding`"
    )


class SlotNotTwoPhase(SlotForeign):
    """The slot sends transactions at their COMMIT PREPARED; the pipeline asks for them when they are prepared, and no
    plugin but pgoutput can turn that on in a slot that is there.
    """

    code = "SRC238"
    hint = (
        "take `two_phase` out of `source.decoding`: prepared transactions arrive whole at their COMMIT PREPARED; or "
        f"have it in a new slot: {ANEW}"
    )


class AdvancePastBronze(SourceError):
    """The slot was to forget changes that bronze does not hold."""

    code = "SRC234"
    hint = (
        "receive them first: `cdc-lake run --once --only receive`; `cdc-lake slot advance` goes as far as bronze does"
    )


class WalBudgetExceeded(SourceError):
    """The server keeps more log for the slot, or older log, than the pipeline allows."""

    code = "SRC235"
    hint = "`cdc-lake status` says why bronze is behind; `cdc-lake slot list` shows what the server keeps for each slot"


class SlotGivenUp(SourceError):
    """The budget stayed exceeded, and the pipeline says that its slot is to be dropped then."""

    code = "SRC233"
    hint = f"find out why bronze fell behind, or raise `source.wal_budget`; then {ANEW}"
