// Package procs starts processes, collects all that end, and finds and kills those that belong together.
package procs

import (
	"os"
	"sync"
	"syscall"
)

// Table knows the processes that were started here and not collected yet.
//
// Whoever collects with wait4(-1) takes every child's status, so os/exec can't be used beside it.
type Table struct {
	mutex sync.Mutex
	live  map[int]*Process
}

// Process is one that Start started.
type Process struct {
	PID int
	// Ended is closed when the process was collected; only then Status means something.
	Ended  chan struct{}
	Status syscall.WaitStatus
}

// HasEnded says whether the process was collected.
func (p *Process) HasEnded() bool {
	select {
	case <-p.Ended:
		return true
	default:
		return false
	}
}

// NewTable must be called before anything else collects children: Go tries out pidfds with a child of its own.
func NewTable() *Table {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Release()
	}
	return &Table{live: map[int]*Process{}}
}

// Start starts a program. The lock keeps Reap from collecting the child before it is known.
func (t *Table) Start(program string, arguments []string, attributes *syscall.ProcAttr) (*Process, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	pid, err := syscall.ForkExec(program, arguments, attributes)
	if err != nil {
		return nil, err
	}
	process := &Process{PID: pid, Ended: make(chan struct{})}
	t.live[pid] = process
	return process, nil
}

// Reap collects every child that has ended, adopted ones too.
func (t *Table) Reap() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if process := t.live[pid]; process != nil {
			delete(t.live, pid)
			process.Status = status
			close(process.Ended)
		}
	}
}

// signalGroup reaches the process's group, as long as the process is uncollected: after that its number may be another's.
func (t *Table) signalGroup(process *Process, number syscall.Signal) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.live[process.PID] == process {
		_ = syscall.Kill(-process.PID, number)
	}
}

// isLive says whether a number is that of a process started here.
func (t *Table) isLive(pid int) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.live[pid] != nil
}
