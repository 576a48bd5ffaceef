package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Wipe empties folders, which may be mounts and so can't be removed themselves. No link is followed.
func Wipe(folders []string) error {
	var problems []error
	for _, folder := range folders {
		problems = append(problems, empty(folder))
	}
	return errors.Join(problems...)
}

func empty(folder string) error {
	names, err := list(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var problems []error
	for _, name := range names {
		path := filepath.Join(folder, name)
		if os.RemoveAll(path) == nil {
			continue
		}
		open(path)
		problems = append(problems, os.RemoveAll(path))
	}
	return errors.Join(problems...)
}

func list(folder string) ([]string, error) {
	opened, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return opened.Readdirnames(-1)
}

// open gives the owner all rights on folders again: a command may have taken them away.
func open(path string) {
	_ = filepath.WalkDir(path, func(name string, entry fs.DirEntry, _ error) error {
		if entry != nil && entry.IsDir() {
			_ = os.Chmod(name, 0o700)
		}
		return nil
	})
}
