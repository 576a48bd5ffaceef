// Package files moves files in and out of the sandbox, and never through a link that leads out of the folder it was
// given.
package files

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// Owner is to whom new files belong. Nobody changes owners with the zero value.
type Owner struct {
	UID, GID int
	Set      bool
}

// ErrOutside is an entry whose name or links lead out of the folder.
var ErrOutside = errors.New("leads out of the folder")

// ErrEntry is an entry that can't be unpacked here.
var ErrEntry = errors.New("can't be unpacked")

// inside cleans an entry's name, and refuses one that leaves the folder whatever the folder holds.
func inside(name string) (string, error) {
	cleaned := path.Clean(name)
	if name == "" || path.IsAbs(name) || cleaned == ".." || strings.HasPrefix(cleaned, "../") {
		return "", fmt.Errorf("%q: %w", name, ErrOutside)
	}
	return cleaned, nil
}

// outside translates what os.Root says when links lead out: an error of its own, that no system call gave.
func outside(name string, err error) error {
	var number syscall.Errno
	if err == nil || errors.As(err, &number) {
		return err
	}
	return fmt.Errorf("%q: %w", name, ErrOutside)
}

// makeBelow makes a folder with those above it, and opens it.
func makeBelow(root *os.Root, name string, owner Owner) (*os.File, error) {
	if folder, err := root.Open(name); err == nil {
		return asFolder(folder, name)
	}
	made := "."
	for _, part := range strings.Split(name, "/") {
		made = path.Join(made, part)
		switch err := root.Mkdir(made, 0o755); {
		case err == nil:
			if err := own(root, made, owner); err != nil {
				return nil, err
			}
		case !errors.Is(err, os.ErrExist):
			return nil, outside(name, err)
		}
	}
	folder, err := root.Open(name)
	if err != nil {
		return nil, outside(name, err)
	}
	return asFolder(folder, name)
}

func asFolder(file *os.File, name string) (*os.File, error) {
	info, err := file.Stat()
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func own(root *os.Root, name string, owner Owner) error {
	if !owner.Set {
		return nil
	}
	parent, err := root.Open(path.Dir(name))
	if err != nil {
		return outside(name, err)
	}
	defer parent.Close()
	return lchownAt(parent, path.Base(name), owner)
}

// MakeAll makes a folder with those above it; all that it made belongs to the owner.
func MakeAll(folder string, owner Owner) error {
	folder = filepath.Clean(folder)
	if info, err := os.Stat(folder); err == nil {
		if !info.IsDir() {
			return &os.PathError{Op: "mkdir", Path: folder, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if above := filepath.Dir(folder); above != folder {
		if err := MakeAll(above, owner); err != nil {
			return err
		}
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return err
	}
	if owner.Set {
		return os.Lchown(folder, owner.UID, owner.GID)
	}
	return nil
}
