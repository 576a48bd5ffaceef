package execs

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
)

const (
	// MarkerName is in the environment of a command and all that it starts: how they are found when they are to end.
	MarkerName  = "GYMTRAIN_SANDBOX_EXEC"
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

func newMarker() string {
	var id [8]byte
	_, _ = rand.Read(id[:])
	return MarkerName + "=" + hex.EncodeToString(id[:])
}

// environ lays the environments over each other, the last one on top.
func environ(base, login []string, asked map[string]string, marker string) []string {
	values := map[string]string{"PATH": defaultPath}
	for _, pair := range slices.Concat(base, login) {
		if name, value, ok := strings.Cut(pair, "="); ok && name != "" {
			values[name] = value
		}
	}
	for name, value := range asked {
		values[name] = value
	}
	delete(values, MarkerName)
	pairs := make([]string, 0, len(values)+1)
	for name, value := range values {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs)
	return append(pairs, marker)
}

func valueOf(environment []string, name string) string {
	for _, pair := range environment {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}
