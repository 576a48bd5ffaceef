"""The trainer's half of the wiring contract, line by line: what a trainer finds, what it serves, how it ends.

The types and constants are those of `wiring`, `manifest`, `ledger` and `weight_version`; here is what each is for. The
page docs/own-trainer.md has these tables, and the conformance test (`gymtrain_conformance`) has a check for each of
`LINES`. A test holds both against this module.
"""

from dataclasses import dataclass

from gymtrain_api import wiring
from gymtrain_api.manifest import FETCHED, MANIFEST_FILE
from gymtrain_api.wiring import ExitCode


@dataclass(frozen=True)
class Variable:
    """One environment variable of the trainer's container.

    Attributes:
        outside: it replaces a path or port of a pod, for a trainer that runs elsewhere. The operator never sets it.
    """

    name: str
    what: str
    outside: bool = False


@dataclass(frozen=True)
class Folder:
    """One file or folder of the trainer's container."""

    path: str
    what: str
    writable: bool = False


@dataclass(frozen=True)
class Route:
    """One route that a trainer serves on `wiring.TRAINER_PORT`.

    Attributes:
        asked_by: who calls it.
        without: what becomes of the run where it is missing.
    """

    call: str
    answer: str
    asked_by: str
    without: str


VARIABLES = (
    Variable(wiring.ENV_ATTEMPT, "number of the attempt, from 1: part of each weight version's label"),
    Variable(wiring.ENV_NODES, "pods of the Job (spec.trainer.nodes)"),
    Variable(wiring.ENV_NODE_RANK, "which of them this is, from 0"),
    Variable(wiring.ENV_MASTER_HOST, "DNS name of node 0 of this attempt; known some seconds after its pod"),
    Variable("HF_TOKEN", "token of spec.model.tokenSecret, where that is set"),
    Variable(wiring.ENV_RUN_TOKEN_FILE, "file with the bearer token of vLLM's control routes"),
    Variable(wiring.ENV_BROKER_URL, "URL of the sandbox broker, where the run has sandboxes"),
    Variable(wiring.ENV_BROKER_TOKEN_FILE, "file with the bearer token for it"),
    Variable(wiring.ENV_RUN_CONFIG, f"path in place of {wiring.RUN_CONFIG_FILE}", outside=True),
    Variable(wiring.ENV_ROOT, "folder in place of /gymtrain", outside=True),
    Variable(wiring.ENV_TERMINATION_LOG, f"path in place of {wiring.TERMINATION_LOG}", outside=True),
    Variable(wiring.ENV_TRAINER_PORT, f"port in place of {wiring.TRAINER_PORT}", outside=True),
)

FOLDERS = (
    Folder(wiring.RUN_CONFIG_FILE, "RunConfig: the spec as it is applied, and the URLs of the run's servers"),
    Folder(wiring.MODEL_DIR, "the model, a Hugging Face folder"),
    Folder(wiring.DATA_INDEX_FILE, "DataIndex: the datasets, one JSONL file and its row offsets each"),
    Folder(f"{wiring.RESUME_DIR}/RUN", "checkpoints of the run that spec.resumeFrom names, where that is another run"),
    Folder(
        wiring.CHECKPOINT_DIR,
        "the run's folder on the volume of spec.trainer.checkpoint, the same in every attempt; gone with the pod where "
        "that isn't set",
        writable=True,
    ),
    Folder(wiring.SCRATCH_DIR, "empty at the pod's start; HOME, HF_HOME and TMPDIR are below it", writable=True),
    Folder(
        wiring.TERMINATION_LOG, "at the end of node 0: a TrainerProgress of at most 4096 bytes, or plain text", True
    ),
)

ROUTES = (
    Route(
        "GET /progress",
        "200 and a TrainerProgress",
        "operator, of node 0: every 2 s, less often where it has more than 50 runs",
        "status.progress stays empty, and the run counts as training once all servers are ready",
    ),
    Route(
        "GET /weights/held",
        "200 and a WeightsHeld; of one node, others answer anything else or nothing",
        "each gateway pod, every 0.5 s",
        "the newest label that vLLM pods say counts as current; vLLM before 0.27 can't say any, so there no call is "
        "answered",
    ),
    Route(
        f"GET /weights/NUMBER/{MANIFEST_FILE}",
        "200 and lines of JSON: a WeightHead, WeightParts, a WeightEnd",
        "each vLLM pod, where the trainer told it to pull",
        "HTTPFull doesn't work",
    ),
    Route(
        "GET /weights/NUMBER/FILE",
        "206 and the range that was asked for, of a file that the manifest names",
        "likewise",
        "HTTPFull doesn't work",
    ),
    Route(
        f"POST /weights/NUMBER/{FETCHED}/ID",
        "204: a pod has fetched all, after an update with step fetch and this fetch_id",
        "likewise",
        "nothing, for a trainer that sends updates with step load alone",
    ),
)

EXIT_CODES = {
    ExitCode.OK: "training is complete, if every node ends so",
    ExitCode.RETRY: "and any other code but the next: another attempt may help, up to spec.backoffLimit",
    ExitCode.REFUSED: "no other attempt can help; the termination message says why, and the run fails",
}

LINES = {
    "ends-without-a-run": "Without run.json the trainer ends soon, with a code other than 0.",
    "finds-the-servers": "It waits for servers that aren't up yet, and doesn't end.",
    "syncs-before-rollouts": "It sends its weights before the first rollout: until then vLLM's are random.",
    "labels-versions": "Each update ends with a label run:attempt:number of this attempt, higher than all before.",
    "sends-whole-weights": "An update's manifest and its files are complete, and are what their checksums say.",
    "lets-vllm-go-on": "No pod stays paused after an update, and no update stays open.",
    "says-what-pods-hold": "GET /weights/held names the current version and, by URL, that of each pod.",
    "repairs-pods": "A vLLM pod that lost the weights gets them again, before the next version.",
    "posts-rows": "POST /run has a row of the data, with all its fields, and goes to that row's agent.",
    "samples-as-the-run": "responses_create_params.temperature is spec.trainer.config.temperature, by default 1.",
    "keeps-the-limit": "No more rollouts are open at once than spec.rollout.maxConcurrent.",
    "survives-failures": "A POST /run that fails doesn't end the attempt.",
    "reports-progress": "GET /progress is a TrainerProgress whose step never falls within an attempt.",
    "leaves-inputs-alone": "It writes to the folders for that alone.",
    "stops-in-time": f"After SIGTERM it ends within the grace period, by default {wiring.TRAINER_GRACE_SECONDS} s.",
    "resumes": "The next attempt begins at the checkpoint of the one before.",
    "ends-well": "It ends with exit code 0 when training is complete.",
    "leaves-a-last-word": "Its termination message is the last TrainerProgress, of phase complete.",
}
OPTIONAL = frozenset({"says-what-pods-hold", "repairs-pods", "reports-progress", "resumes", "leaves-a-last-word"})
"""Lines that a trainer may leave out: the page says what it costs. What is there has to be right."""
