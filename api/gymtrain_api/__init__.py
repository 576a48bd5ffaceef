"""The interface of gymtrain: the resource, its names, and the documents that the parts of a run exchange.

Every other package may import this one. It imports no other package of gymtrain, and not kopf, a Kubernetes
client or torch, so every image can include it.
"""
