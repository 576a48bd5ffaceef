package execs

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// stalled is how long a caller may leave a line unread before it counts as gone.
const stalled = 60 * time.Second

// exit is the last line of a command that ran.
type exit struct {
	Type         string  `json:"t"`
	Code         int     `json:"code"`
	Signal       *string `json:"signal"`
	TimedOut     bool    `json:"timedOut"`
	OutTruncated int64   `json:"outTruncated"`
	ErrTruncated int64   `json:"errTruncated"`
	Seconds      float64 `json:"seconds"`
}

// lines writes the answer's lines.
type lines struct {
	response http.ResponseWriter
	control  *http.ResponseController
	buffer   []byte
}

func newLines(response http.ResponseWriter) *lines {
	response.Header().Set("Content-Type", "application/x-ndjson")
	response.WriteHeader(http.StatusOK)
	return &lines{response: response, control: http.NewResponseController(response)}
}

func (l *lines) start(pid int) error {
	l.buffer = append(strconv.AppendInt(append(l.buffer[:0], `{"t":"start","pid":`...), int64(pid), 10), "}\n"...)
	return l.write(l.buffer)
}

// data writes one piece of output. It isn't flushed: more may follow at once.
func (l *lines) data(kind string, data []byte) error {
	l.buffer = append(append(append(l.buffer[:0], `{"t":"`...), kind...), `","d":"`...)
	l.buffer = append(base64.StdEncoding.AppendEncode(l.buffer, data), "\"}\n"...)
	return l.write(l.buffer)
}

func (l *lines) beat() error {
	return l.write([]byte("{\"t\":\"beat\"}\n"))
}

func (l *lines) failure(failure Failure) error {
	return l.document(map[string]string{"t": "error", "error": failure.Code, "message": failure.Message})
}

func (l *lines) document(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return l.write(append(text, '\n'))
}

func (l *lines) write(line []byte) error {
	_ = l.control.SetWriteDeadline(time.Now().Add(stalled))
	_, err := l.response.Write(line)
	return err
}

func (l *lines) flush() error {
	return l.control.Flush()
}

// outcome translates a wait status: a signal's number counts from 128, as in shells.
func outcome(status syscall.WaitStatus) (code int, signal *string) {
	if !status.Signaled() {
		return status.ExitStatus(), nil
	}
	name := signalName(status.Signal())
	return 128 + int(status.Signal()), &name
}

var signalNames = map[syscall.Signal]string{
	syscall.SIGABRT: "ABRT", syscall.SIGALRM: "ALRM", syscall.SIGBUS: "BUS", syscall.SIGFPE: "FPE",
	syscall.SIGHUP: "HUP", syscall.SIGILL: "ILL", syscall.SIGINT: "INT", syscall.SIGKILL: "KILL",
	syscall.SIGPIPE: "PIPE", syscall.SIGPROF: "PROF", syscall.SIGQUIT: "QUIT", syscall.SIGSEGV: "SEGV",
	syscall.SIGSYS: "SYS", syscall.SIGTERM: "TERM", syscall.SIGTRAP: "TRAP", syscall.SIGUSR1: "USR1",
	syscall.SIGUSR2: "USR2", syscall.SIGVTALRM: "VTALRM", syscall.SIGXCPU: "XCPU", syscall.SIGXFSZ: "XFSZ",
}

func signalName(number syscall.Signal) string {
	if name, ok := signalNames[number]; ok {
		return name
	}
	return fmt.Sprintf("SIG%d", int(number))
}
