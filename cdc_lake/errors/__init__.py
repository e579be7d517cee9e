"""Every error of cdc_lake, drawn as a tree.

::

    CdcLakeError
    ├─ ConfigError      CFG1xx  a pipeline file, an environment, a reference
    ├─ SourceError      SRC2xx  the database: connection, slot, publication, snapshot
    ├─ DecodeError      DEC3xx  bytes of the stream
    ├─ LakeError        LAK4xx  tables: bronze, silver, control; Spark; catalogs
    ├─ QualityError     QUA5xx  rules and reports
    ├─ StateError       STA6xx  watermarks, fences, order
    └─ DeployError      DEP7xx  bundles and jobs

The message says what failed and where, the hint what to do, `retry` whether waiting helps. The cause is chained,
never pasted into the message; no message holds a row value or a secret. Each code has a page in `docs/errors/`.
"""

from __future__ import annotations

from cdc_lake.errors.config import (
    ConfigError,
)
from cdc_lake.errors.decode import (
    BatchTooLarge,
    DecodeError,
    InvalidText,
    MalformedMessage,
    OutOfSequence,
    RecordingUnreadable,
    TruncatedMessage,
    UnexpectedMessage,
    UnknownRelation,
    UnknownType,
)
from cdc_lake.errors.deploy import (
    DeployError,
)
from cdc_lake.errors.lake import (
    ApplyFailed,
    BronzeDamaged,
    BronzeNotWritten,
    BronzeUnknown,
    ControlNotWritten,
    DestructiveChange,
    IcebergMissing,
    JavaMissing,
    LakeError,
    MergeRefused,
    SilverMissing,
    SparkDied,
    SparkMissing,
    SparkNotStarted,
    TableChangedMeanwhile,
)
from cdc_lake.errors.quality import (
    DuplicateRule,
    QualityEngineMissing,
    QualityError,
    ReportNotWritten,
    RuleColumnMissing,
    RuleDoesNotFit,
    RuleStopped,
)
from cdc_lake.errors.root import (
    CdcLakeError,
    Retry,
)
from cdc_lake.errors.source import (
    AuthenticationRefused,
    BronzeAhead,
    CopyUnknown,
    DatabaseUnknown,
    DriverMissing,
    NoFreeSlot,
    NoReplicaIdentity,
    NoTableMatches,
    OtherSource,
    PublicationMissing,
    PublicationUnfit,
    QueryRefused,
    ReceiverDied,
    RoleLacksReplication,
    ServerBusy,
    ServerSettings,
    ServerUnreachable,
    SlotActive,
    SlotAhead,
    SlotForeign,
    SlotInvalidated,
    SlotMissing,
    SourceError,
    SourcePermission,
    StreamProtocol,
    TableRewritten,
    TlsRefused,
)
from cdc_lake.errors.state import (
    AnotherApply,
    AnotherReceiver,
    MalformedPosition,
    NoKey,
    NoStream,
    NotInBronze,
    NotInOrder,
    RecordingNotWritten,
    SilverLost,
    SnapshotIncomplete,
    StateError,
)

__all__ = [
    "AnotherApply",
    "AnotherReceiver",
    "ApplyFailed",
    "AuthenticationRefused",
    "BatchTooLarge",
    "BronzeAhead",
    "BronzeDamaged",
    "BronzeNotWritten",
    "BronzeUnknown",
    "CdcLakeError",
    "ConfigError",
    "ControlNotWritten",
    "CopyUnknown",
    "DatabaseUnknown",
    "DecodeError",
    "DeployError",
    "DestructiveChange",
    "DriverMissing",
    "DuplicateRule",
    "IcebergMissing",
    "InvalidText",
    "JavaMissing",
    "LakeError",
    "MalformedMessage",
    "MalformedPosition",
    "MergeRefused",
    "NoFreeSlot",
    "NoKey",
    "NoReplicaIdentity",
    "NoStream",
    "NoTableMatches",
    "NotInBronze",
    "NotInOrder",
    "OtherSource",
    "OutOfSequence",
    "PublicationMissing",
    "PublicationUnfit",
    "QualityEngineMissing",
    "QualityError",
    "QueryRefused",
    "ReceiverDied",
    "RecordingNotWritten",
    "RecordingUnreadable",
    "ReportNotWritten",
    "Retry",
    "RoleLacksReplication",
    "RuleColumnMissing",
    "RuleDoesNotFit",
    "RuleStopped",
    "ServerBusy",
    "ServerSettings",
    "ServerUnreachable",
    "SilverLost",
    "SilverMissing",
    "SlotActive",
    "SlotAhead",
    "SlotForeign",
    "SlotInvalidated",
    "SlotMissing",
    "SnapshotIncomplete",
    "SourceError",
    "SourcePermission",
    "SparkDied",
    "SparkMissing",
    "SparkNotStarted",
    "StateError",
    "StreamProtocol",
    "TableChangedMeanwhile",
    "TableRewritten",
    "TlsRefused",
    "TruncatedMessage",
    "UnexpectedMessage",
    "UnknownRelation",
    "UnknownType",
]
