"""Objects that the spec names and that somebody else makes."""

from gymtrain_api import names
from gymtrain_api.resume import ResumeFrom
from gymtrain_api.sources import ConfigMapKey, VolumeClaim, parse_data_source, parse_model_source
from gymtrain_api.spec import GymTrainingRunSpec


def named_objects(spec: GymTrainingRunSpec, run: str) -> list[tuple[str, str, str]]:
    """Kind, name, and field of the spec, of every claim and ConfigMap that has to exist for the run of that name.

    Secrets are left out: the operator has no right to read them, and the kubelet names a missing one.
    """
    found: list[tuple[str, str, str]] = []
    model = parse_model_source(spec.model.source)
    if isinstance(model, VolumeClaim):
        found.append(("PersistentVolumeClaim", model.claim, "spec.model.source"))
    for number, dataset in enumerate(spec.data.train):
        source = parse_data_source(dataset.source) if dataset.source else None
        field = f"spec.data.train[{number}].source"
        if isinstance(source, VolumeClaim):
            found.append(("PersistentVolumeClaim", source.claim, field))
        elif isinstance(source, ConfigMapKey):
            found.append(("ConfigMap", source.name, field))
    checkpoint = spec.trainer.checkpoint
    if checkpoint and checkpoint.claim_name:
        found.append(("PersistentVolumeClaim", checkpoint.claim_name, "spec.trainer.checkpoint.claimName"))
    earlier = ResumeFrom.parse(spec.resume_from) if spec.resume_from else None
    if earlier and checkpoint and checkpoint.size and earlier.run != run:  # its own is made
        found.append(("PersistentVolumeClaim", names.checkpoint_volume(earlier.run), "spec.resumeFrom"))
    return found
