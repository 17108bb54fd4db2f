"""What the drivers of network adapters other than Mellanox's say: Amazon, Broadcom, Intel, Google, Microsoft, Pensando, HiSilicon and others.

One table of words serves all of them, since most drivers use the same words for the same event. Written after the drivers' sources
and public logs.
"""

import re

from mldebug.hardware.kernel_log.lines.reader import (
    ADDRESS,
    MAX_NAME,
    KernelText,
    LineReader,
    bus_id,
    event,
)
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

DRIVERS = (
    "bnxt_en", "ena", "efa", "gve", "gvnic", "mana", "ionic", "hns3", "hclge", "hclgevf", "ice", "i40e", "iavf", "idpf", "ixgbe", "ixgbevf",
    "igb", "igc", "fm10k", "e1000e", "tg3", "cxgb4", "qede", "qed", "hfi1", "irdma", "erdma", "enic", "sfc", "atlantic", "hinic", "be2net", "bnx2x",
)  # fmt: skip
_NAME = r"(?:[\w.@-]{1,32}|\(unnamed net_device\)(?: \(uninitialized\))?)"
# "[qede_recovery_handler:2674(ens5f0)]Starting …", "bnxt_en 0000:41:00.0 ens3f0np0: …", "bnxt_en 0000:41:00.0: QPLIB: …", "infiniband rdmap16s27: …", "igb 0000:02:00.0 eno1: igb: eno1 …"
_HEAD = re.compile(
    rf"(?:(?:(?P<driver>{'|'.join(DRIVERS)}) (?P<bus>{ADDRESS})(?: (?P<name>{_NAME}))?|infiniband (?P<ib>[\w.-]{{1,32}})): |(?:bnx2x: )?\[(?:qede?|bnx2x)_\w{{1,48}}:\d{{1,6}}\((?P<qlogic>[\w.@-]{{1,32}})\)\])"
    r"(?P<words>[^\n]{1,400})"
)
_SPEAKER = re.compile(r"[\w.-]{1,32}: ")  # a part of the driver, or the interface once more
_FATAL = (
    # it left the bus, or stopped for good
    r"PCIe link lost|Adapter removed|encountered fatal error, adapter stopped|[^\n]{0,60}!!! DISABLING ALL QUEUES !!!"
    r"|(?:The )?[Nn]etwork adapter (?:was|has been) stopped because it (?:has )?over ?heated"
    # its firmware is dead, or says so
    r"|Firmware not responding|(?:FW|[Ff]irmware) (?:isn't|is not) respons(?:ive|ding)|(?:Detected )?[Ff]irmware fatal (?:error|condition)|FW fatal error|Firmware recovery mode detected"
    r"|Fatal firmware reset event, data1: "  # bnxt: the firmware says so before it resets itself
    r"|Entering recovery mode due to repeated FW resets|FW Down: Stopping LIFs|Starting a recovery process|Critical temperature reached|critical PE Error|HMC Error\b|PE Push Error"
    r"|[^\n]{0,60}(?:2bit ECC error|ecc_mbit_err(?:_\w{1,20})? found|MULTI_BIT_ERR)"
    # its driver could not bring it back
    r"|Firmware reset aborted|bnxt_open\(\) failed during FW reset|RESET_DONE not set|FW Up: LIFs restart failed"
    r"|Admin queue is closed|Device isn't ready|(?:Failed to|Can ?not|Can't) (?:reset|initialize) (?:the )?device"
    r"|(?:EFA |ENA )?[Dd]evice init failed|Reset attempt failed|Reset never finished|Recovery handling has failed|Reset indication didn't turn o"
    r"|[Dd]evice has not reached the reset state|Couldn't (?:open|start) port\b|Reset fail!|Rebuild failed|Error during VSI rebuild|rebuild VSI failed"
    r"|(?![^\n]{0,40}(?:VF|PTP|PHC))(?:[\w ]{1,30} )?[Rr]eset failed\b|MC assert!|(?:Unr|[^\n]{0,80}\b(?:unr|non-r))ecoverable (?:state|(?:[\w/]{1,16} ){0,4}error\b)|[^\n]{0,60} failed, device is unrecoverable"
    r"|(?![^\n]{0,160}\b(?:may need|updated|[Cc]onfiguration changed|new (?:firmware|settings)))[^\n]{1,120}(?:[Pp]lease reload|unload and reload) (?:the )?driver"
)
_TIMEOUT = (
    r"The (?:ib ?dev(?:ice)?|device) (?:didn't send any completion|sent a completion but)|Keep alive watchdog timeout|Admin queue timeout"
    r"|Wait for completion \(polling\) timeout|Reading [\w ]{1,40} (?:timed out|failed for timeout)|Error \(timeout: \d{1,9}\) msg |cmdq\[\w{1,10}\]=\w{1,10} timedout"
    r"|HWC: (?:Request timed out|timeout)|Requesting a reset\s*$|Potential MSIX issue on Rx side|ENA admin queue is not in running state|Failed to submit command \w{1,40} \(opcode \d{1,4}\) err -(?:19|ENODEV)\b|FW heartbeat stalled|DEVCMD \S{1,48} \(\d{1,5}\) timeout after|DEV_CMD firmware wait \S{1,48} timed out"
    r"|Device reset timeout|Wait for reset timeout|Transaction timed-out|error cqp command 0x\w{1,8} timed out|AQTX: Writeback timeout"
    r"|(?![^\n]{0,40}\b(?:recover|return|no longer|left|out of))[^\n]{0,40}\bunhealthy state"
    # ETIMEDOUT of whatever the driver wanted, but for clocks, sensors, transceivers, neighbours, memory that is written and low power of a port, and for virtual functions, which are others'
    r"|(?![^\n]{0,200}(?:PTP|PTM|PHC|[Tt]imestamp|DPLL|PLL|ULP|hwmon|thermal|SFP|[Mm]odule|[Tt]ransceiver|EEPROM|VPD|LLDP|lldp|DCB|[Ss]elf[- ]?test|[Ll]oopback|[Cc]ore ?dump|\bARP\b|\bCM REQ\b|Shadow RAM|flash|erase|NVM|(?:[Aa]uto-?neg|[Ll]ink )[^\n]{0,60}timed out|\bVFs?\b))[^\n]{1,160}(?:[ =:(]-110\b|\btimed out\b|\btimeout occurred\b)"
)
# A driver that asked for its statistics in vain, or tested itself, serves all the same
_OF_NO_ACCOUNT = r"[^\n]{0,160}(?:\b[Ss]tats?\b|[Ss]tatistics|[Ss]elf[- ]?test)"
_UNSENT = (
    r"TX timeout detected|tx hang \d{1,6} detected on queue|tx_timeout(?: count)?: |Detected (?:Tx|Hardware) Unit Hang|transmit timeout: latency|(?:Timeout on tx|T[Xx] timeout on) queue"
    r"|Tx Timeout triggered|TX stuck with |transmit timed out, resetting|Detected Tx timeout|initiating reset due to (?:lost link with pending Tx work|tx timeout)"
    r"|(?:\[\d/\d\] )?Lost TX completions are above (?:the )?threshold"
)
# bnxt: doorbells that got lost, another host that stops all traffic; irdma: a queue pair that ended with an error; of any, the one by which connections are made
_COMPLAINT = r"Failed to process command |One or more MMIO doorbells dropped|Pause Storm detected!|(?:AEQ: )?abnormal ae_id = 0x|Fatal error \(\d{1,4}\) on MAD QP "
_HOT = r"Chip temperature has gone above the (?:warning|critical|fatal|shutdown) thermal threshold"
_STARTED = (
    r"[^\n]{1,160} found at mem |Device reset completed(?: successfully|, status: 0\b)|FW heartbeat restored|FW Up: LIFs restarted"
    r"|IB device registered|Microsoft Azure Network Adapter protocol version|Driver is running with \w{2,8} \w{2,8} queue format|GVE queue format"
    r"|fw \d{1,4}\.\d{1,6}\.\d{1,6} api \d|Intel\(R\) [^\n]{1,60} Network Connection|The firmware version is "
)
_KINDS = {
    "fatal": KernelEventKind.NIC_FATAL,
    "timeout": KernelEventKind.NIC_TIMEOUT,
    "unsent": KernelEventKind.NIC_TX_TIMEOUT,
    "hot": KernelEventKind.NIC_HOT,
    "refused": KernelEventKind.NIC_ERROR,
    "started": KernelEventKind.NIC_OK,
}
_WORDS = re.compile(
    rf"(?P<fatal>{_FATAL})|(?P<unsent>{_UNSENT})|(?P<hot>{_HOT})|(?P<refused>{_COMPLAINT})|(?P<started>{_STARTED})|(?P<timeout>(?!{_OF_NO_ACCOUNT})(?:{_TIMEOUT}))"
)
# Of the kernel itself where a driver could not start a device: "mlx5_core: probe of 0000:01:00.0 failed with error -22", since 6.8
# "mlx5_core 0000:01:00.0: probe with driver mlx5_core failed with error -22". Not of one that it tries again: EAGAIN, EPROBE_DEFER
_ANY = rf"(?:mlx[45]_core|{'|'.join(DRIVERS)})"
_NOT_STARTED = re.compile(
    rf"(?:(?P<driver>{_ANY}): probe of (?P<bus>{ADDRESS})|(?P<new_driver>{_ANY}) (?P<new>{ADDRESS}): probe with driver {_ANY})"
    r" failed with error -(?!(?:11|517)\b)\d"
)
# Of these a port that nobody uses may have an unsupported transceiver or an empty memory, at each boot: no fault of the node
_MAY_BE_UNUSED = frozenset({"ice", "i40e", "ixgbe", "igb", "e1000e", "tg3"})
# "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out", since 6.8 "mlx5_core 0000:41:00.0 eth0: NETDEV WATCHDOG: CPU: 3: …"
_WATCHDOG = re.compile(
    rf"(?:NETDEV WATCHDOG: (?P<old>[\w.@-]{{1,32}}) \((?P<old_driver>[^)\n]{{0,32}})\)"
    rf"|(?P<driver>[\w-]{{1,32}}) (?:(?P<bus>{ADDRESS})|[\w.:-]{{1,32}}) (?P<name>[\w.@-]{{1,32}}): NETDEV WATCHDOG: CPU: \d{{1,5}})"
    r": transmit queue (?:\d{1,5} )?timed out"
)
_IPOIB = re.compile(r"(?P<name>ib[\w.]{1,20}): transmit timeout: latency")


def _adapter(line: KernelText) -> KernelEvent | None:
    match = _HEAD.match(line.text)
    if match is None:
        return None
    text = match["words"]
    words = _WORDS.match(text)
    if words is None and (speaker := _SPEAKER.match(text)) is not None:
        words = _WORDS.match(text, speaker.end())
    if words is None or words.lastgroup is None:
        return None
    name = "" if (match["name"] or "").startswith("(") else match["name"] or ""
    bus = bus_id(match["bus"] or "")
    return event(
        line,
        _KINDS[words.lastgroup],
        device=(bus or match["ib"] or match["qlogic"])[:MAX_NAME],
        alias=name[:MAX_NAME] if bus else "",
        driver=match["driver"] or "",
    )


def _not_started(line: KernelText) -> KernelEvent | None:
    """An adapter that its driver could not start."""
    match = _NOT_STARTED.match(line.text)
    if match is None:
        return None
    driver = match["driver"] or match["new_driver"]
    unused = driver in _MAY_BE_UNUSED
    kind = KernelEventKind.NIC_ERROR if unused else KernelEventKind.NIC_FATAL
    return event(line, kind, device=bus_id(match["bus"] or match["new"]), driver=driver)


def _watchdog(line: KernelText) -> KernelEvent | None:
    """The kernel itself sees that an adapter of any driver sends nothing."""
    if match := _IPOIB.match(line.text):
        return event(line, KernelEventKind.NIC_TX_TIMEOUT, device=match["name"])
    match = _WATCHDOG.match(line.text)
    if match is None:
        return None
    name = match["old"] or match["name"]
    return event(
        line,
        KernelEventKind.NIC_TX_TIMEOUT,
        device=name[:MAX_NAME],
        alias=bus_id(match["bus"] or ""),
        driver=(match["old_driver"] or match["driver"] or "")[:MAX_NAME],
    )


SIGNS = (
    LineReader(" failed with error ", _not_started),
    LineReader("NETDEV WATCHDOG: ", _watchdog),
    LineReader("transmit timeout", _watchdog),
    *(LineReader(f"{driver} ", _adapter) for driver in (*DRIVERS, "infiniband")),
    LineReader("[qed", _adapter),
    LineReader("[bnx2x_", _adapter),
)
