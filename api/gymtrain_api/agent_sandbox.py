"""Names of agent-sandbox (sigs.k8s.io/agent-sandbox v1) that gymtrain uses."""

GROUP = "extensions.agents.x-k8s.io"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
PATH = f"/apis/{API_VERSION}"

CLAIM, TEMPLATE, POOL = "SandboxClaim", "SandboxTemplate", "SandboxWarmPool"
CLAIMS, TEMPLATES, POOLS = "sandboxclaims", "sandboxtemplates", "sandboxwarmpools"
KINDS = {CLAIM: CLAIMS, TEMPLATE: TEMPLATES, POOL: POOLS}

FIRST_READY = "agents.x-k8s.io/claim-first-ready-at"  # annotation that its controller sets on claims
