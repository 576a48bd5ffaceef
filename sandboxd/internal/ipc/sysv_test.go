package ipc

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestNothingOfSystemVIsLeft(t *testing.T) {
	// Never unlocked: the thread, and its namespace with it, ends with the test.
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWIPC); err != nil {
		t.Skip("a new IPC namespace needs root: ", err)
	}
	const create, unreadable = 0o1000, 0
	for name, call := range map[string][4]uintptr{
		"shared memory": {syscall.SYS_SHMGET, 0, 4096, create | unreadable},
		"semaphores":    {syscall.SYS_SEMGET, 0, 2, create | unreadable},
		"message queue": {syscall.SYS_MSGGET, 0, create | unreadable, 0},
	} {
		for range 2 {
			if _, _, number := syscall.Syscall(call[0], call[1], call[2], call[3]); number != 0 {
				t.Fatal(name, number)
			}
		}
	}
	if before := listed(t); before != 6 {
		t.Fatal(before, "objects were made")
	}
	if err := Empty(); err != nil {
		t.Fatal(err)
	}
	if left := listed(t); left != 0 {
		t.Fatal(left, "objects are left")
	}
}

func listed(t *testing.T) int {
	t.Helper()
	count := 0
	for _, kind := range kinds {
		text, err := os.ReadFile(kind.list)
		if err != nil {
			t.Fatal(err)
		}
		count += strings.Count(string(text), "\n") - 1 // the heading
	}
	return count
}
