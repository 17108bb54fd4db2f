"""Which addresses count as one client, where somebody's share of something is bounded. Pure."""

import ipaddress


def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, or an IPv6 network of 64 bits, of which one node has all addresses."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
