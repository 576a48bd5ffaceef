package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const programName = "gymtrain-sandboxd"

// install copies this program into a folder that it shares with the task's container. The rename makes it appear
// whole or not at all.
func install(folder string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	source, err := os.Open(self)
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.CreateTemp(folder, programName+".*")
	if err != nil {
		return fmt.Errorf("%w; mount a writable folder there", err)
	}
	defer os.Remove(copied.Name())
	if _, err := io.Copy(copied, source); err != nil {
		copied.Close()
		return err
	}
	if err := copied.Chmod(0o755); err != nil {
		copied.Close()
		return err
	}
	if err := copied.Close(); err != nil {
		return err
	}
	if err := writeToken(folder, os.LookupEnv); err != nil {
		return err
	}
	return os.Rename(copied.Name(), filepath.Join(folder, programName))
}
