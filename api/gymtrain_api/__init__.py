"""The interface of gymtrain: the resource, its names, and what the parts of a run say to each other.

Every other package may import this one; it imports none of them, and neither kopf, a Kubernetes
client nor torch, so that each image can carry it.
"""
