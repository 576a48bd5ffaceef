// Package config reads the daemon's settings from its environment.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	prefix      = "GYMTRAIN_SANDBOX_"
	tokenName   = prefix + "TOKEN_SHA256"
	fileName    = prefix + "TOKEN_FILE"
	portName    = prefix + "PORT"
	wipeName    = prefix + "WIPE"
	wipeIPCName = prefix + "WIPE_IPC"
	outputName  = prefix + "MAX_OUTPUT"
	diskName    = prefix + "DISK"
	defaultPort = 8787
	// DefaultOutput is how many bytes of a stream a command's caller gets.
	DefaultOutput = 16 << 20
)

// Settings are what a sandbox's pod says.
type Settings struct {
	// Token is the SHA-256 of the token that callers present.
	Token [sha256.Size]byte
	Port  int
	// Wipe are the folders that outlive the container, and are emptied when it starts and on reset.
	Wipe []string
	// WipeIPC says that the IPC namespace is the sandbox's own, and to be emptied as the folders are.
	WipeIPC bool
	// MaxOutput limits what is kept of one stream of one command.
	MaxOutput int
	// Disk limits what the volumes of the image take, in bytes; 0 is no limit.
	Disk int
}

// FromEnvironment reads and checks all settings.
func FromEnvironment(lookup func(string) (string, bool)) (Settings, error) {
	settings := Settings{Port: defaultPort, MaxOutput: DefaultOutput}
	text, origin, err := tokenDigest(lookup)
	if err != nil {
		return settings, err
	}
	digest, err := hex.DecodeString(text)
	if err != nil || len(digest) != sha256.Size {
		return settings, fmt.Errorf("%s must be the SHA-256 of the token, 64 hexadecimal digits", origin)
	}
	copy(settings.Token[:], digest)
	if settings.Port, err = number(lookup, portName, defaultPort, 1, 65535); err != nil {
		return settings, err
	}
	if settings.MaxOutput, err = number(lookup, outputName, DefaultOutput, 0, 1<<30); err != nil {
		return settings, err
	}
	if settings.Disk, err = number(lookup, diskName, 0, 0, math.MaxInt); err != nil {
		return settings, err
	}
	wipeIPC, err := number(lookup, wipeIPCName, 0, 0, 1)
	if err != nil {
		return settings, err
	}
	settings.WipeIPC = wipeIPC == 1
	wipe, _ := lookup(wipeName)
	for _, folder := range strings.Split(wipe, ":") {
		if folder == "" {
			continue
		}
		if folder = filepath.Clean(folder); !filepath.IsAbs(folder) || folder == "/" {
			return settings, fmt.Errorf("%s names %q: each folder must be an absolute path below /", wipeName, folder)
		}
		settings.Wipe = append(settings.Wipe, folder)
	}
	return settings, nil
}

// tokenDigest is what the environment, or else the file that it names, says of the token, and which of them it was.
func tokenDigest(lookup func(string) (string, bool)) (text, origin string, err error) {
	if text, _ := lookup(tokenName); text != "" {
		return text, tokenName, nil
	}
	path, _ := lookup(fileName)
	if path == "" {
		return "", tokenName, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fileName, fmt.Errorf("%s: %w; `install` writes it, given the key", fileName, err)
	}
	return strings.TrimSpace(string(content)), fileName, nil
}

func number(lookup func(string) (string, bool), name string, otherwise, least, most int) (int, error) {
	text, _ := lookup(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := strconv.Atoi(text)
	if err != nil || value < least || value > most {
		return 0, fmt.Errorf("%s is %q: it must be a number from %d to %d", name, text, least, most)
	}
	return value, nil
}

// WithoutOwn is the environment for commands: all but the daemon's own variables.
func WithoutOwn(environment []string) []string {
	kept := make([]string, 0, len(environment))
	for _, pair := range environment {
		if !strings.HasPrefix(pair, prefix) {
			kept = append(kept, pair)
		}
	}
	return kept
}
