package host

import (
	"syscall"
	"unsafe"
)

// disposition is the kernel's struct sigaction on 64-bit Linux: the handler, flags, the way back, the mask.
type disposition [4]uintptr

// nothingAddress is where the handler that does nothing is.
var nothingAddress uintptr

const (
	byDefault   = 0
	ignored     = 1
	signalBytes = 8
)

// handleTheRest gives a handler to the signals that Go leaves alone (32 and 34, kept for C libraries).
//
// The kernel drops a signal without a handler for the first process of a pid namespace, but not while its main thread
// has the signal blocked, as it has while it handles another: then any other thread takes it and the process dies.
// Ignoring them instead, as whoever started this may do, would be inherited by all commands; a handler is not. Go's own
// ends the process for a signal that Go doesn't know that it handles.
func handleTheRest() {
	// The flags and the way back are as Go has them.
	var wanted disposition
	if sigaction(syscall.SIGHUP, nil, &wanted) != nil || wanted[0] <= ignored {
		return
	}
	wanted[0] = nothingAddress
	for number := syscall.Signal(1); number < 65; number++ {
		var now disposition
		if number == syscall.SIGKILL || number == syscall.SIGSTOP || sigaction(number, nil, &now) != nil {
			continue
		}
		if now[0] == byDefault || now[0] == ignored {
			_ = sigaction(number, &wanted, nil)
		}
	}
}

func sigaction(number syscall.Signal, wanted, was *disposition) error {
	_, _, failed := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(number),
		uintptr(unsafe.Pointer(wanted)), uintptr(unsafe.Pointer(was)), signalBytes, 0, 0)
	if failed != 0 {
		return failed
	}
	return nil
}
