"""URLs of pods."""


def pod_url(ip: str, port: int, path: str) -> str:
    """URL of a pod's port; IPv6 addresses stand in brackets."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{port}{path}"
