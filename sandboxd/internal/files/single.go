package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// ErrNotRegular is something that has no content to give or take.
var ErrNotRegular = errors.New("is a folder or a device, not a file")

// Read opens one file.
func Read(name string) (*os.File, os.FileInfo, error) {
	// A pipe would keep an ordinary open waiting.
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = checkRegular(name, info)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// Write puts content into one file, which appears whole or not at all. Missing folders are made; a link in its place is
// replaced.
func Write(name string, mode uint32, owner Owner, content io.Reader) (int64, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return 0, fmt.Errorf("%s %w", name, ErrNotRegular)
	}
	folder := filepath.Dir(name)
	if err := MakeAll(folder, owner); err != nil {
		return 0, err
	}
	file, err := os.CreateTemp(folder, ".gymtrain-*")
	if err != nil {
		return 0, err
	}
	written, err := io.Copy(file, content)
	if err == nil && owner.Set {
		err = file.Chown(owner.UID, owner.GID)
	}
	if err == nil {
		err = syscallMode(file, int64(mode))
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return written, err
}

func checkRegular(name string, info os.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("%s %w", name, ErrNotRegular)
}
