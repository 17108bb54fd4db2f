"""Which network addresses count as one client where the share of each client is limited. Pure."""

import ipaddress


def source_of(address: str) -> str:
    """The client that an address counts for: an IPv4 address itself; for IPv6 its /64 network, as one node may use any address of it.

    Text that is no address is returned as it is.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
