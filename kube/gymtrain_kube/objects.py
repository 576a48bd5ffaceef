"""What the API server takes and answers."""

from typing import Any

type Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as JSON."""
