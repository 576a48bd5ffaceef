// Package host readies the daemon's own process: signals, threads, and what others may do to it.
package host

import (
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
)

const (
	processors = 4
	// spareThreads is more than the daemon ever blocks in system calls at once: Go makes a thread when it needs one, and
	// ends the process where the kernel refuses it, as it does when a command has used up the pids limit.
	spareThreads = 32
	memoryLimit  = 256 << 20

	prSetDumpable       = 4
	prSetChildSubreaper = 36
)

// Prepare makes the process robust against what runs beside it. Nothing here is needed to work, so where a kernel
// refuses something the daemon goes on without.
func Prepare() {
	runtime.GOMAXPROCS(min(runtime.NumCPU(), processors))
	debug.SetMemoryLimit(memoryLimit)
	reserveThreads(spareThreads)
	// Orphans come here even where another process is the first of the pid namespace.
	prctl(prSetChildSubreaper, 1)
	// Commands of the same user can't trace the daemon or read its memory, which holds tokens.
	prctl(prSetDumpable, 0)
}

func prctl(option, value uintptr) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, option, value, 0)
}

// reserveThreads has the runtime make threads that it keeps: each goroutine holds one until all have theirs.
func reserveThreads(count int) {
	var holding, released sync.WaitGroup
	release := make(chan struct{})
	holding.Add(count)
	released.Add(count)
	for range count {
		go func() {
			runtime.LockOSThread()
			holding.Done()
			<-release
			runtime.UnlockOSThread()
			released.Done()
		}()
	}
	holding.Wait()
	close(release)
	released.Wait()
}
