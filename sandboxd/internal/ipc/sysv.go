// Package ipc removes what commands leave in the IPC namespace. It is the pod's, so it outlives the container.
package ipc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// remove is the kernel's IPC_RMID.
const remove = 0

// kinds are System V's objects, and where they are listed: the second column is the object's id.
var kinds = []struct {
	list string
	drop func(id uintptr) syscall.Errno
}{
	{"/proc/sysvipc/shm", func(id uintptr) syscall.Errno { return control(syscall.SYS_SHMCTL, id, remove, 0) }},
	{"/proc/sysvipc/sem", func(id uintptr) syscall.Errno { return control(syscall.SYS_SEMCTL, id, 0, remove) }},
	{"/proc/sysvipc/msg", func(id uintptr) syscall.Errno { return control(syscall.SYS_MSGCTL, id, remove, 0) }},
}

// Empty removes all shared memory, semaphores and message queues of System V. Where the kernel has no list of them,
// which doesn't say that it has none of them, the error is fs.ErrNotExist.
func Empty() error {
	var problems []error
	for _, kind := range kinds {
		text, err := os.ReadFile(kind.list)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		for _, line := range strings.Split(string(text), "\n")[1:] {
			var key, id int
			if _, err := fmt.Sscan(line, &key, &id); err != nil {
				continue // the end of the list
			}
			switch number := kind.drop(uintptr(id)); number {
			case 0, syscall.EINVAL, syscall.EIDRM: // the last two: gone by itself
			default:
				problems = append(problems, fmt.Errorf("%s: %d can't be removed: %w", kind.list, id, number))
			}
		}
	}
	return errors.Join(problems...)
}

func control(call, id, first, second uintptr) syscall.Errno {
	_, _, number := syscall.Syscall(call, id, first, second)
	return number
}
