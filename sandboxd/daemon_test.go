package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gymtrain.dev/sandboxd/internal/disk"
)

// The tests run this test program as the daemon: it then serves instead of testing.
const serveInstead = "GYMTRAIN_SANDBOX_TEST_SERVES"

// A folder whose `message` and `mountinfo` stand in for the container's.
const placesInstead = "GYMTRAIN_SANDBOX_TEST_PLACES"

const token = "a token for tests"

func TestMain(m *testing.M) {
	if os.Getenv(serveInstead) == "" {
		os.Exit(m.Run())
	}
	// Never this machine's own: what a daemon watches it also empties.
	places := disk.Places{}
	if folder := os.Getenv(placesInstead); folder != "" {
		places = disk.Places{Mounts: folder + "/mountinfo", Message: folder + "/message"}
	}
	if err := serve(places); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitCode(err))
	}
}

// daemon is one that runs, with a client's view of it.
type daemon struct {
	t       testing.TB
	url     string
	process *exec.Cmd
	ended   chan error
}

// asFirst starts the daemon as the first process of a pid namespace, as in a container.
func asFirst(t *testing.T, settings ...string) *daemon {
	t.Helper()
	return asFirstIn(t, `exec "$@"`, settings...)
}

// asFirstIn starts it so from a shell script, whose arguments are the command, in an IPC namespace of their own.
func asFirstIn(t *testing.T, script string, settings ...string) *daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a new pid namespace needs root")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("a new pid namespace needs the program unshare")
	}
	options := []string{"--pid", "--fork", "--mount-proc", "--kill-child"}
	if exec.Command(unshare, append(options, "--ipc", "true")...).Run() != nil {
		t.Skip("this machine allows no new pid namespace")
	}
	around := []string{"--ipc", "sh", "-c", script, "sh", unshare}
	return start(t, exec.Command(unshare, append(append(around, options...), os.Args[0])...), settings)
}

// asAny starts it as an ordinary process.
func asAny(t testing.TB, settings ...string) *daemon {
	t.Helper()
	return start(t, exec.Command(os.Args[0]), settings)
}

func start(t testing.TB, command *exec.Cmd, settings []string) *daemon {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(free.Addr().(*net.TCPAddr).Port)
	free.Close()
	digest := sha256.Sum256([]byte(token))
	command.Env = append(os.Environ(), serveInstead+"=1", "GYMTRAIN_SANDBOX_PORT="+port,
		"GYMTRAIN_SANDBOX_TOKEN_SHA256="+hex.EncodeToString(digest[:]))
	command.Env = append(command.Env, settings...)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	one := &daemon{t: t, url: "http://127.0.0.1:" + port, process: command, ended: make(chan error, 1)}
	go func() { one.ended <- command.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		<-one.ended
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if response, err := http.Get(one.url + "/healthz"); err == nil {
			response.Body.Close()
			return one
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon doesn't answer")
		}
	}
}

// call makes one call and returns its status and body.
func (d *daemon) call(method, path string, body io.Reader) (int, string) {
	d.t.Helper()
	response := d.open(method, path, body)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func (d *daemon) open(method, path string, body io.Reader) *http.Response {
	d.t.Helper()
	request, err := http.NewRequest(method, d.url+path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		d.t.Fatal(err)
	}
	return response
}

// line is any line of an exec's answer.
type line struct {
	Type         string  `json:"t"`
	Data         []byte  `json:"d"`
	PID          int     `json:"pid"`
	Code         int     `json:"code"`
	Signal       *string `json:"signal"`
	TimedOut     bool    `json:"timedOut"`
	OutTruncated int     `json:"outTruncated"`
	ErrTruncated int     `json:"errTruncated"`
	Seconds      float64 `json:"seconds"`
	Error        string  `json:"error"`
	Message      string  `json:"message"`
}

func (l line) signal() string {
	if l.Signal == nil {
		return ""
	}
	return *l.Signal
}

// result is what an exec came to.
type result struct {
	out, err []byte
	last     line
}

func (r result) String() string {
	return fmt.Sprintf("%+v %s, out %.200q, err %.200q", r.last, r.last.signal(), r.out, r.err)
}

// exec runs a command to its end.
func (d *daemon) exec(request map[string]any) result {
	d.t.Helper()
	var got result
	for one := range d.lines(request) {
		switch one.Type {
		case "out":
			got.out = append(got.out, one.Data...)
		case "err":
			got.err = append(got.err, one.Data...)
		}
		got.last = one
	}
	return got
}

func (d *daemon) shell(text string) result {
	d.t.Helper()
	return d.exec(map[string]any{"shell": text})
}

// lines runs a command and yields each line as it comes. Who stops early is gone for the daemon.
func (d *daemon) lines(request map[string]any) func(func(line) bool) {
	d.t.Helper()
	text, err := json.Marshal(request)
	if err != nil {
		d.t.Fatal(err)
	}
	response := d.open(http.MethodPost, "/v1/exec", bytes.NewReader(text))
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(response.Body)
		d.t.Fatalf("%d: %s", response.StatusCode, said)
	}
	return func(yield func(line) bool) {
		defer response.Body.Close()
		scanner := bufio.NewScanner(response.Body)
		for scanner.Scan() {
			var one line
			if err := json.Unmarshal(scanner.Bytes(), &one); err != nil {
				d.t.Errorf("%q: %v", scanner.Text(), err)
			}
			if !yield(one) {
				return
			}
		}
		if err := scanner.Err(); err != nil {
			d.t.Error(err)
		}
	}
}

// running counts the processes with a word in their command line, by the sandbox's own /proc.
func (d *daemon) running(word string) int {
	d.t.Helper()
	// The pattern doesn't fit itself.
	pattern := "[" + word[:1] + "]" + word[1:]
	got := d.shell(`for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' 2>/dev/null <$f && echo; done | grep -c -- '` + pattern + `'`)
	count, err := strconv.Atoi(strings.TrimSpace(string(got.out)))
	if err != nil {
		d.t.Fatal(got)
	}
	return count
}

// eventually waits for what takes a moment.
func (d *daemon) eventually(what string, holds func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatal("never came true: ", what)
		}
	}
}

func base64of(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
