package execs

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"

	"gymtrain.dev/sandboxd/internal/output"
	"gymtrain.dev/sandboxd/internal/procs"
	"gymtrain.dev/sandboxd/internal/users"
)

const (
	// Most is how many commands may run at once.
	Most = 256
	// outputMemory is shared by the output of all of them.
	outputMemory = 64 << 20
	// starters is how many commands are prepared at once: looking things up on a slow disk holds a thread.
	starters = 4
)

// ErrTooMany is one command more than there may be.
var ErrTooMany = errors.New("256 commands run already: wait for one to end")

// Runner runs the sandbox's commands.
type Runner struct {
	table   *procs.Table
	base    []string
	most    int
	pool    *output.Pool
	running atomic.Int64
	ending  atomic.Bool
	places  chan struct{}
	etc     string
}

// NewRunner makes one whose commands start from the base environment and keep at most so many bytes of each stream.
func NewRunner(table *procs.Table, base []string, mostOutput int) *Runner {
	return &Runner{
		table:  table,
		base:   base,
		most:   mostOutput,
		pool:   output.NewPool(outputMemory),
		places: make(chan struct{}, starters),
		etc:    "/etc",
	}
}

// Running is how many commands run.
func (r *Runner) Running() int { return int(r.running.Load()) }

// End says that everything is about to be killed. From now on no caller hears how its command ended: that would pass for
// the command's own doing.
func (r *Runner) End() { r.ending.Store(true) }

// Run runs one command and answers with its lines. An error comes before anything was answered.
func (r *Runner) Run(ctx context.Context, request Request, response http.ResponseWriter) error {
	if r.running.Add(1) > Most {
		r.running.Add(-1)
		return ErrTooMany
	}
	defer r.running.Add(-1)
	started, err := r.start(ctx, request)
	var failure Failure
	if errors.As(err, &failure) {
		answer := newLines(response)
		if err := answer.failure(failure); err == nil {
			_ = answer.flush()
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := started.attend(ctx, newLines(response)); err != nil {
		log.Print(err)
	}
	return nil
}

// start prepares a command and starts it.
func (r *Runner) start(ctx context.Context, request Request) (*execution, error) {
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	attributes := &syscall.ProcAttr{Dir: request.Cwd, Sys: &syscall.SysProcAttr{Setsid: true}}
	login, err := r.become(request.User, attributes.Sys)
	if err != nil {
		return nil, err
	}
	if err := checkFolder(request.Cwd); err != nil {
		return nil, err
	}
	marker := newMarker()
	attributes.Env = environ(r.base, login, request.Env, marker)
	program, arguments, err := r.program(request, valueOf(attributes.Env, "PATH"))
	if err != nil {
		return nil, err
	}
	streams, err := open(request.Stdin != nil)
	if err != nil {
		return nil, startFailure(program, request.Cwd, err)
	}
	defer streams.closeTheirs()
	for _, descriptor := range streams.theirs {
		attributes.Files = append(attributes.Files, uintptr(descriptor))
	}
	process, err := r.table.Start(program, arguments, attributes)
	if err != nil {
		streams.closeOurs()
		return nil, startFailure(program, request.Cwd, err)
	}
	tree := &procs.Tree{Main: process, Marker: marker, Sole: func() bool { return r.Running() == 1 }}
	return newExecution(r, request, tree, streams), nil
}

// become sets whom the command runs as, and returns what login would put into its environment.
func (r *Runner) become(name string, attributes *syscall.SysProcAttr) ([]string, error) {
	if name == "" {
		return nil, nil
	}
	user, err := users.Find(r.etc, name)
	if err != nil {
		return nil, Failure{"bad_user", err.Error()}
	}
	if attributes.Credential, err = user.Credential(); err != nil {
		return nil, Failure{"bad_user", err.Error()}
	}
	return user.Environment(), nil
}

func checkFolder(cwd string) error {
	if cwd == "" {
		return nil
	}
	info, err := os.Stat(cwd)
	switch {
	case errors.Is(err, os.ErrPermission):
		// The command's user may see more than the daemon does: the start tells.
		return nil
	case err != nil:
		return Failure{"bad_cwd", cwd + ": no such folder; make it first, or leave cwd out for the image's own"}
	case !info.IsDir():
		return Failure{"bad_cwd", cwd + " is no folder"}
	}
	return nil
}

// program is what to execute, and its arguments.
func (r *Runner) program(request Request, path string) (string, []string, error) {
	cwd := request.Cwd
	if request.Shell != "" {
		found, ok := shell(path, cwd)
		if !ok {
			return "", nil, ErrNoShell
		}
		return found, []string{found, "-c", request.Shell}, nil
	}
	found, err := find(request.Command[0], path, cwd)
	switch {
	case errors.Is(err, errNotExecutable):
		return "", nil, Failure{"permission", request.Command[0] + ": found in PATH, but it is not executable"}
	case err != nil:
		return "", nil, notFound(request.Command[0])
	}
	return found, request.Command, nil
}
