package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

const (
	keyName      = "GYMTRAIN_SANDBOX_KEY"
	identityName = "GYMTRAIN_SANDBOX_IDENTITY"
	tokenFile    = "token.sha256"
)

// writeToken puts the digest of this pod's token beside the program, if the environment brings the key: where pods are
// made from one template, nobody can tell each of them its own. The key stays in the init container, which ends before
// the task's begins; what is left tells nobody a token, this pod's or another's.
func writeToken(folder string, lookup func(string) (string, bool)) error {
	key, _ := lookup(keyName)
	if key = strings.TrimSpace(key); key == "" {
		return nil
	}
	identity, _ := lookup(identityName)
	if identity == "" {
		return errors.New(identityName + " must say which pod this is, where " + keyName + " is set")
	}
	path := filepath.Join(folder, tokenFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(digestOf(tokenOf(key, identity))+"\n"), 0o444)
}

// tokenOf is what the run's broker makes of the same two.
func tokenOf(key, identity string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte("sandbox:" + identity))
	return hex.EncodeToString(mac.Sum(nil))
}

func digestOf(text string) string {
	digest := sha256.Sum256([]byte(text))
	return hex.EncodeToString(digest[:])
}
