package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func lookupIn(environment map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	}
}

func TestTheInitContainerLeavesTheDigestThatTheBrokerExpects(t *testing.T) {
	folder := t.TempDir()
	environment := map[string]string{keyName: "run-token\n", identityName: "uid-1"}
	for range 2 { // a restarted init container finds the file of its first life
		if err := writeToken(folder, lookupIn(environment)); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(filepath.Join(folder, tokenFile))
	if err != nil {
		t.Fatal(err)
	}
	// gymtrain_api.sandboxes: token_digest(sandbox_token("run-token", "uid-1"))
	if want := "6ed0c87ae30ac432d2a11025c51d5c80a834a6cd526a1b1eae4a2ba88e4c1d3a"; strings.TrimSpace(string(content)) != want {
		t.Fatalf("%s, not %s", content, want)
	}
}

func TestAKeyWithoutAnIdentityIsRefused(t *testing.T) {
	if err := writeToken(t.TempDir(), lookupIn(map[string]string{keyName: "run-token"})); err == nil {
		t.Fatal("all pods would have the same token")
	}
}

func TestWithoutAKeyNothingIsWritten(t *testing.T) {
	folder := t.TempDir()
	if err := writeToken(folder, lookupIn(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, tokenFile)); !os.IsNotExist(err) {
		t.Fatalf("there is a file: %v", err)
	}
}
