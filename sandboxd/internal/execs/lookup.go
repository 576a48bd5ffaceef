package execs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

var (
	errNotFound      = errors.New("not found")
	errNotExecutable = errors.New("not executable")
)

// find looks a program up as execvp does, but in the command's own PATH and folder.
func find(program, path, cwd string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	found := errNotFound
	for _, folder := range strings.Split(path, ":") {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(cwd, folder)
		}
		candidate := filepath.Join(folder, program)
		info, err := os.Stat(candidate)
		switch {
		case err != nil || info.IsDir():
		case info.Mode()&0o111 == 0:
			found = errNotExecutable
		default:
			return candidate, nil
		}
	}
	return "", found
}

// shell is the first one that the image has.
func shell(path, cwd string) (string, bool) {
	for _, name := range []string{"bash", "sh"} {
		if program, err := find(name, path, cwd); err == nil {
			return program, true
		}
	}
	return "", false
}
