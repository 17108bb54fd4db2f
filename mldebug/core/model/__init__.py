"""The nouns: everything mldebug knows is a value of one of these types, a module for each subject.

Immutable `msgspec` structs without behaviour beyond small properties. Captures and reports are stored as their JSON.
Units: seconds, bytes, unix time (float, UTC). `rank` is always the global rank. All are imported from here.
"""

from mldebug.core.model.base import MeasuredData, ReportData, shared_fields
from mldebug.core.model.capture import (
    CAPTURE_SCHEMA,
    Fault,
    GpuSample,
    HookState,
    NodeCapture,
    NodePort,
    QueriedNode,
    QueriedNodes,
    RankCapture,
    RankDevice,
    TraceTail,
)
from mldebug.core.model.collectives import (
    Collective,
    FlightGroup,
    FlightRecord,
    GroupCount,
    NcclAbsent,
    NcclCommunicator,
    NcclLevel,
    NcclRank,
    NcclRas,
    PairCount,
    TimedCall,
    TimedCalls,
    Transfer,
)
from mldebug.core.model.identity import Gap, Job, LostRank, NodeWait, RankIdentity, Remark
from mldebug.core.model.judgement import (
    Classification,
    ClassifiedRank,
    Confidence,
    Culprit,
    Diagnosis,
    Finding,
    Group,
    Judgement,
    Role,
    TreeNode,
    Verdict,
)
from mldebug.core.model.memory import HeldLine, MemoryFailure, MemoryHolders
from mldebug.core.model.node_brief import GpuBrief, NodeBrief, RankBrief, RunBrief
from mldebug.core.model.process import (
    MAIN_THREAD,
    FileLock,
    Frame,
    Io,
    LockHolder,
    LogTail,
    Movement,
    OpenFile,
    ProcessCapture,
    ProcessState,
    SourceExcerpt,
    ThreadStack,
    ThreadState,
)

__all__ = ["CAPTURE_SCHEMA", "MAIN_THREAD", "Classification", "ClassifiedRank", "Collective", "Confidence", "Culprit", "Diagnosis", "Fault", "FileLock", "Finding", "FlightGroup", "FlightRecord", "Frame", "Gap", "GpuBrief", "GpuSample", "Group", "GroupCount", "HeldLine", "HookState", "Io", "Job", "Judgement", "LockHolder", "LogTail", "LostRank", "MeasuredData", "MemoryFailure", "MemoryHolders", "Movement", "NcclAbsent", "NcclCommunicator", "NcclLevel", "NcclRank", "NcclRas", "NodeBrief", "NodeCapture", "NodePort", "NodeWait", "OpenFile", "PairCount", "ProcessCapture", "ProcessState", "QueriedNode", "QueriedNodes", "RankBrief", "RankCapture", "RankDevice", "RankIdentity", "Remark", "ReportData", "Role", "RunBrief", "SourceExcerpt", "ThreadStack", "ThreadState", "TimedCall", "TimedCalls", "TraceTail", "Transfer", "TreeNode", "Verdict", "shared_fields"]  # fmt: skip
