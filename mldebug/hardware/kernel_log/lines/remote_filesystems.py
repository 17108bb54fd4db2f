"""What the kernel says of servers that store files: NFS, Lustre and its LNet, Ceph (CephFS and rbd), BeeGFS, Weka, SMB that are silent, lost or came back."""

import re

from mldebug.hardware.kernel_log.lines.reader import KernelText, LineReader, event
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

_NFS = re.compile(r"(?:nfs|lockd): server (?P<server>[^\s,]{1,255}) (?P<state>not responding|OK\b)")
_LUSTRE = re.compile(
    r"Lustre(?:Error)?: (?:[\d-]{1,12}: )?(?:(?P<target>[\w-]{1,48}?-(?:OST|MDT)[0-9a-fA-F]{4})|[^\s:]{1,100})[^\s:]{0,60}: "
    r"(?:Connection to (?P<lost>[^\s()]{1,64}) \(at [^)\n]{1,64}\) was lost|(?P<restored>Connection restored to )"
    r"|This client was evicted by (?P<evicted>[^\s;]{1,64})|operation \w{1,40} to node (?P<node>\S{1,64}) failed)"
)
# "LustreError: 11-0: …", "LustreError: 4711:0:(client.c:1234:…) …": the number is no name's
_LUSTRE_ERROR = re.compile(
    r"(?:Lustre|LNet)Error: (?:[0-9a-fA-F]{1,4}-[0-9a-fA-F]{1,4}: |\d{1,10}:\d{1,5}:\()"
)
# Reclaiming is what NFS 4 does after its server has restarted: what fails there was locked or open, and is lost
_RECLAIM = re.compile(
    r"NFSv4: state recovery failed for open file |(?:NFS: )?(?:(?:__)?nfs4_reclaim_open_state: (?:Lock reclaim failed|unhandled error -\d)"
    r"|state manager: [\w ]{1,60} failed on NFSv4 server (?P<server>[^\s,]{1,255}) with error"
    r"|nfs4_handle_reclaim_lease_error: handled error -?\d{1,5} for server (?P<lease>[^\s,]{1,255}))"
)
# LNet is what Lustre talks through: "LNetError: 2431:0:(o2iblnd_cb.c:3335:kiblnd_check_txs_locked()) Timed out tx: active_txs, 0 seconds"
_LNET = re.compile(
    r"(?:LNet(?:Error)?: (?:\d{1,10}:\d{1,5}:\([^()\n]{1,100}\(\)\) )?(?:Timed out (?:tx|RDMA|ZC|passive|active)|No usable routes to|Cannot send to)"
    r"|Lustre: \d{1,10}:\d{1,5}:\([^()\n]{1,100}ptlrpc_expire_one_request\(\)\) @@@ Request sent has (?:failed|timed out))"
)
# "beegfs: python3(4711): writefile (communication): SocketError. ErrCode: -70": the name is a program's, the words are BeeGFS's
_BEEGFS = re.compile(
    r"beegfs: (?=[\s\S]{1,15}\(\d{1,10}\): )[^\n]{1,200}?\(\d{1,10}\): [^\n]{0,120}?"
    r"(?:SocketError|Communication error|[Rr]eceive (?:timed out|failed)|Failed to send message|[Uu]nable to connect|Couldn't find any usable NIC|Connect failed|Remote I/O error|Unreachable)"
)
# "CIFS: VFS: \\server has not responded in 30 seconds. Reconnecting...", of old kernels "CIFS VFS: Server server has not responded …"
# The processes through which a node reaches Weka's servers ("frontends") do not run
_WEKA = re.compile(
    r"wekafs(?:io|gw): [^\n]{0,200}?\b(?:ALL FEs down|FE was down)\b(?P<up>[^\n]{0,40}?\bnow up\b)?"
)
_SMB = re.compile(
    r"CIFS:? VFS: (?:\\{1,2}(?P<new>[^\s\\]{1,255})[^\n]{0,120}? |Server (?P<old>\S{1,255}) )?(?:has not responded in |Error connecting to socket)"
)
_FSID = r"(?:\[[0-9a-f -]{1,80}\]: )?"
_MON = re.compile(
    r"libceph: mon\d{1,4}(?:\(fsid=[0-9a-f-]{1,40}\))? [^\n]{1,120}?session (?P<state>lost|established)"
)
_MDS = re.compile(
    rf"ceph: {_FSID}(?P<mds>mds\d{{1,4}}) (?:(?P<lost>hung\s*$|reconnect denied|rejected session|closed our session|session blocklisted|caps (?:went )?stale)"
    r"|(?P<back>came back|recovery completed|reconnect success|caps renewed))"
)
_CEPH_ERROR = re.compile(
    r"libceph(?: \([0-9a-f-]{1,40} e\d{1,10}\))?: (?P<peer>(?:mon|osd|mds)\d{1,6})(?: [^\n]{1,120}?)? (?:down$|socket closed|socket error on (?:read|write)|(?:connection|session) reset"
    r"|connect error|protocol error|wrong peer|bad (?:crc|magic|tag))"
    r"|libceph: connect [^\n]{1,80} error -\d"
    r"|rbd: (?P<rbd>rbd\d{1,6}): [^\n]{0,120}?(?:result -\d|expired after|timed out|failed|blocklisted|error)"
)


def _nfs(line: KernelText) -> KernelEvent | None:
    match = _NFS.match(line.text)
    if match is None:
        return None
    kind = KernelEventKind.NFS_OK if match["state"] == "OK" else KernelEventKind.NFS_NOT_RESPONDING
    return event(line, kind, device=match["server"])


def _lustre(line: KernelText) -> KernelEvent | None:
    match = _LUSTRE.match(line.text)
    if match is None:
        failed = _LUSTRE_ERROR.match(line.text)
        return event(line, KernelEventKind.LUSTRE_ERROR) if failed else None
    if match["lost"]:
        return event(line, KernelEventKind.LUSTRE_LOST, device=match["lost"])
    if match["evicted"]:
        return event(line, KernelEventKind.LUSTRE_EVICTED, device=match["evicted"])
    kind = KernelEventKind.LUSTRE_RESTORED if match["restored"] else KernelEventKind.LUSTRE_ERROR
    return event(line, kind, device=match["target"] or "")


def _lnet(line: KernelText) -> KernelEvent | None:
    found = _LNET.match(line.text) or _LUSTRE_ERROR.match(line.text)
    return event(line, KernelEventKind.LUSTRE_ERROR) if found else None


def _smb(line: KernelText) -> KernelEvent | None:
    match = _SMB.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.SMB_ERROR, device=match["new"] or match["old"] or "")


def _beegfs(line: KernelText) -> KernelEvent | None:
    return event(line, KernelEventKind.BEEGFS_ERROR) if _BEEGFS.match(line.text) else None


def _weka(line: KernelText) -> KernelEvent | None:
    match = _WEKA.match(line.text)
    if match is None:
        return None
    kind = KernelEventKind.WEKA_OK if match["up"] else KernelEventKind.WEKA_LOST
    return event(line, kind, device="weka")


def _reclaim(line: KernelText) -> KernelEvent | None:
    match = _RECLAIM.match(line.text)
    if match is None:
        return None
    return event(
        line, KernelEventKind.NFS_STATE_LOST, device=match["server"] or match["lease"] or ""
    )


def _ceph(line: KernelText) -> KernelEvent | None:
    mon, mds = _MON.match(line.text), _MDS.match(line.text)
    if mon is not None:
        lost = mon["state"] == "lost"
        return event(
            line, KernelEventKind.CEPH_LOST if lost else KernelEventKind.CEPH_OK, device="monitors"
        )
    if mds is not None:
        kind = KernelEventKind.CEPH_LOST if mds["lost"] else KernelEventKind.CEPH_OK
        return event(line, kind, device=mds["mds"])
    match = _CEPH_ERROR.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.CEPH_ERROR, device=match["peer"] or match["rbd"] or "")


SIGNS = (
    LineReader(": server ", _nfs),
    LineReader("NFS: ", _reclaim),
    LineReader("nfs4_reclaim_open_state: ", _reclaim),
    LineReader("NFSv4: state recovery", _reclaim),
    LineReader("Lustre", _lustre),
    LineReader("LNet", _lnet),
    LineReader("Request sent has ", _lnet),
    LineReader("beegfs: ", _beegfs),
    LineReader("wekafs", _weka),
    LineReader("CIFS", _smb),
    LineReader("ceph: ", _ceph),
    LineReader("libceph (", _ceph),
    LineReader("rbd: ", _ceph),
)
