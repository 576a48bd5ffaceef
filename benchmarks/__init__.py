"""What is measured, on the cluster that KUBECONFIG names."""
