package execs

import (
	"context"
	"io"
	"time"

	"gymtrain.dev/sandboxd/internal/output"
	"gymtrain.dev/sandboxd/internal/procs"
)

const (
	// silence is after how long without a line the caller gets one that says nothing.
	silence = 10 * time.Second
	// lingering is how long a command's output is awaited after its end, while something it left behind can still write.
	lingering = time.Second
)

// execution is one command that runs.
type execution struct {
	runner  *Runner
	tree    *procs.Tree
	streams *pipes
	began   time.Time
	timeout time.Duration
	wake    chan struct{}
	out     *output.Stream
	err     *output.Stream

	// over is closed when the command has ended, and been killed if it had to be; the others are set by then.
	over     chan struct{}
	timedOut bool
	took     time.Duration
	trouble  error
}

func newExecution(runner *Runner, request Request, tree *procs.Tree, streams *pipes) *execution {
	one := &execution{
		runner:  runner,
		tree:    tree,
		streams: streams,
		began:   time.Now(),
		timeout: request.timeout(),
		wake:    make(chan struct{}, 1),
		over:    make(chan struct{}),
	}
	limit := request.outputLimit(runner.most)
	one.out = output.NewStream(runner.pool, limit, one.rouse)
	one.err = output.NewStream(runner.pool, limit, one.rouse)
	go fill(one.out, runner.pool, streams.stdout)
	go fill(one.err, runner.pool, streams.stderr)
	go streams.feed(request.Stdin)
	return one
}

// fill reads a pipe until nobody holds it any more, which can be long after the command's end: closing it earlier would
// kill a server in the background at its next line of log.
func fill(stream *output.Stream, pool *output.Pool, pipe io.ReadCloser) {
	defer pipe.Close()
	stream.Fill(pool, pipe)
}

func (e *execution) rouse() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// attend tells the caller what happens, until the end. A caller that goes away takes the command with it.
func (e *execution) attend(parent context.Context, answer *lines) error {
	ctx, leave := context.WithCancel(parent)
	defer leave()
	go e.watch(ctx)
	err := e.stream(answer)
	leave()
	<-e.over
	e.streams.endInput()
	e.out.Free()
	e.err.Free()
	if err == nil {
		return e.trouble
	}
	return nil
}

// watch waits for the command's end, and brings it about at the timeout or when the caller is gone. It is apart from
// the sending, which a slow caller can hold up.
func (e *execution) watch(ctx context.Context) {
	defer close(e.over)
	var expired <-chan time.Time
	if e.timeout > 0 {
		timer := time.NewTimer(e.timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-e.tree.Main.Ended:
	case <-expired:
		e.timedOut = e.kill()
	case <-ctx.Done():
		e.kill()
	}
	e.took = time.Since(e.began)
}

// kill ends the command, unless it has ended by itself: what it left in the background may stay.
func (e *execution) kill() bool {
	if e.tree.Main.HasEnded() {
		return false
	}
	e.trouble = e.runner.table.Kill(e.tree)
	return true
}

// stream sends output as it comes, and the end.
func (e *execution) stream(answer *lines) error {
	if err := answer.start(e.tree.Main.PID); err != nil {
		return err
	}
	if err := answer.flush(); err != nil {
		return err
	}
	buffer, giveBack := e.runner.pool.Scratch()
	defer giveBack()
	beat := time.NewTimer(silence)
	defer beat.Stop()
	over := e.over
	var late <-chan time.Time
	for {
		select {
		case <-e.wake:
		case <-over:
			over = nil
			linger := time.NewTimer(lingering)
			defer linger.Stop()
			late = linger.C
		case <-late:
			return e.finish(answer, buffer)
		case <-beat.C:
			if err := answer.beat(); err != nil {
				return err
			}
			if err := answer.flush(); err != nil {
				return err
			}
			beat.Reset(silence)
			continue
		}
		closed := e.out.Closed() && e.err.Closed()
		sent, err := e.send(answer, buffer)
		if err != nil {
			return err
		}
		if over == nil && closed {
			return e.finish(answer, buffer)
		}
		if sent {
			if err := answer.flush(); err != nil {
				return err
			}
			beat.Reset(silence)
		}
	}
}

// send sends what is there of the first halves, by turns.
func (e *execution) send(answer *lines, buffer []byte) (sent bool, err error) {
	for more := true; more; {
		more = false
		for _, part := range e.parts() {
			count := part.stream.Next(buffer)
			if count == 0 {
				continue
			}
			more, sent = true, true
			if err := answer.data(part.kind, buffer[:count]); err != nil {
				return sent, err
			}
		}
	}
	return sent, nil
}

// finish sends the last halves and the outcome.
func (e *execution) finish(answer *lines, buffer []byte) error {
	if e.runner.ending.Load() {
		return errEnding
	}
	outTruncated, errTruncated := e.out.Finish(), e.err.Finish()
	if _, err := e.send(answer, buffer); err != nil {
		return err
	}
	for _, part := range e.parts() {
		for count := part.stream.Last(buffer); count > 0; count = part.stream.Last(buffer) {
			if err := answer.data(part.kind, buffer[:count]); err != nil {
				return err
			}
		}
	}
	last := exit{
		Type: "exit", Code: -1, TimedOut: e.timedOut,
		OutTruncated: outTruncated, ErrTruncated: errTruncated, Seconds: e.took.Seconds(),
	}
	select {
	case <-e.tree.Main.Ended:
		last.Code, last.Signal = outcome(e.tree.Main.Status)
	default:
		// It hangs in the kernel and can't be killed.
	}
	if err := answer.document(last); err != nil {
		return err
	}
	return answer.flush()
}

type part struct {
	kind   string
	stream *output.Stream
}

func (e *execution) parts() [2]part {
	return [2]part{{"out", e.out}, {"err", e.err}}
}
