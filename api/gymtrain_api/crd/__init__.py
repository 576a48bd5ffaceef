"""Generates the CRD, the chart's copy of it, and the reference page from the types.

    python -m gymtrain_api.crd            writes them
    python -m gymtrain_api.crd --check    exits with 1 and a diff if the committed files differ

    spec/, status.py ──pydantic──> JSON schema ──structural.py──> OpenAPI v3 structural schema ─┐
    validations.py ────────────────────────────────rules.py──────> x-kubernetes-validations ─────┤
                                                                                  definition.py ─┴─> CRD
                                                                                  reference.py ────> Markdown

Nothing else imports this package. Only this package needs PyYAML.
"""
