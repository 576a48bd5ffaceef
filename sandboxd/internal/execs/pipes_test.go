package execs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestNoInputIsTheNullDeviceAndNothingInItsPlace(t *testing.T) {
	folder := t.TempDir()
	fifo, file := filepath.Join(folder, "fifo"), filepath.Join(folder, "file")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("input"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, file, "/dev/zero", filepath.Join(folder, "missing")} {
		opened := make(chan error, 1)
		go func() {
			descriptor, err := openNull(path)
			if err == nil {
				syscall.Close(descriptor)
			}
			opened <- err
		}()
		select {
		case err := <-opened:
			if err == nil {
				t.Errorf("%s was taken for the null device", path)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s is waited for", path)
		}
	}
	descriptor, err := openNull("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(descriptor)
}
