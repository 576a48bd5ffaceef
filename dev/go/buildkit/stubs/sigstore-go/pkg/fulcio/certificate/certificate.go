// Package certificate has the one type that BuildKit names of sigstore: nothing here verifies a signature.
package certificate

// Summary holds no field of a certificate: a policy that names one can't be met.
type Summary struct{}
