package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyTheTokenOpensTheDoor(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	calls := []string{"GET /v1/status", "POST /v1/exec", "GET /v1/file?path=/etc/passwd", "PUT /v1/files?path=/tmp", "GET /v1/ports/80/", "POST /v1/reset", "GET /"}
	for _, call := range calls {
		for _, header := range []string{"", "Bearer", "Bearer wrong", "Basic " + token, token} {
			method, path, _ := strings.Cut(call, " ")
			request, err := http.NewRequest(method, d.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", header)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode != 401 || !json.Valid(body) {
				t.Errorf("%s with %q: %d %s", call, header, response.StatusCode, body)
			}
		}
	}
	response, err := http.Get(d.url + "/healthz")
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	response.Body.Close()
}

func TestACallForAnotherInstanceIsRefused(t *testing.T) {
	t.Parallel()
	instance := func(d *daemon) string {
		var told struct{ Instance string }
		if _, body := d.call("GET", "/healthz", nil); json.Unmarshal([]byte(body), &told) != nil || told.Instance == "" {
			t.Fatal(body)
		}
		return told.Instance
	}
	d, other := asAny(t), asAny(t)
	for header, want := range map[string]int{"": 200, instance(d): 200, instance(other): 410} {
		request, err := http.NewRequest("POST", d.url+"/v1/exec", strings.NewReader(`{"shell":"true"}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Gymtrain-Sandbox-Instance", header)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != want || (want == 410) != strings.Contains(string(body), `"other_instance"`) {
			t.Errorf("%q: %d %s", header, response.StatusCode, body)
		}
	}
}

func TestStatusCountsIdleSecondsAndIsNoUse(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	idle := func() (seconds float64) {
		var told struct{ IdleSeconds *float64 }
		if _, body := d.call("GET", "/v1/status", nil); json.Unmarshal([]byte(body), &told) != nil || told.IdleSeconds == nil {
			t.Fatal(body)
		}
		return *told.IdleSeconds
	}
	first, second := idle(), idle()
	if first <= 0 || second <= first {
		t.Fatal(first, second)
	}
	for one := range d.lines(map[string]any{"shell": "sleep 0.1"}) {
		if one.Type == "start" && idle() != 0 {
			t.Fatal("idle while a command runs")
		}
	}
}

func TestFilesGoInAndOut(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	folder := t.TempDir()
	at := func(call, name string) string { return call + "?path=" + url.QueryEscape(filepath.Join(folder, name)) }
	if status, body := d.call("PUT", at("/v1/file", "deep/ä file")+"&mode=0600", strings.NewReader("text")); status != 200 || !strings.Contains(body, `"bytes":4`) {
		t.Fatal(status, body)
	}
	if status, body := d.call("GET", at("/v1/file", "deep/ä file"), nil); status != 200 || body != "text" {
		t.Fatal(status, body)
	}
	archive := d.open("GET", at("/v1/files", ""), nil)
	defer archive.Body.Close()
	if status, body := d.call("PUT", at("/v1/files", "copy"), archive.Body); status != 200 || !strings.Contains(body, `"entries":2`) {
		t.Fatal(status, body)
	}
	content, err := os.ReadFile(filepath.Join(folder, "copy/deep/ä file"))
	if err != nil || string(content) != "text" {
		t.Fatal(string(content), err)
	}
	if status, body := d.call("GET", "/v1/file?path=/proc/version", nil); status != 200 || !strings.Contains(body, "Linux") {
		t.Fatal(status, body)
	}
}

func TestMistakesWithFilesAreNamed(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	folder := t.TempDir()
	large := func() io.Reader { return io.LimitReader(zeros{}, 8<<20) }
	cases := map[string]struct {
		call   string
		body   io.Reader
		status int
		code   string
	}{
		"no path":             {"GET /v1/file", nil, 400, "bad_request"},
		"not there":           {"GET /v1/file?path=/no/such", nil, 404, "not_found"},
		"no folder there":     {"GET /v1/files?path=/no/such", nil, 404, "not_found"},
		"a folder as file":    {"GET /v1/file?path=" + folder, nil, 400, "not_a_file"},
		"writing to a folder": {"PUT /v1/file?path=" + folder, strings.NewReader("x"), 400, "not_a_file"},
		"below a file":        {"PUT /v1/file?path=/etc/passwd/x", strings.NewReader("x"), 404, "not_a_folder"},
		"a strange mode":      {"PUT /v1/file?path=" + folder + "/x&mode=rw", strings.NewReader("x"), 400, "bad_request"},
		"no tar":              {"PUT /v1/files?path=" + folder, strings.NewReader(strings.Repeat("x", 2000)), 400, "bad_tar"},
		"no such user":        {"PUT /v1/file?path=" + folder + "/x&user=nobody-here", large(), 403, "bad_user"},
		"no such call":        {"DELETE /v1/file?path=" + folder, nil, 404, "no_such_call"},
		"too long a request":  {"POST /v1/exec", io.MultiReader(strings.NewReader(`{"shell":"`), large(), strings.NewReader(`"}`)), 413, "too_large"},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(one.call, " ")
			status, body := d.call(method, path, one.body)
			var told struct{ Error, Message string }
			if err := json.Unmarshal([]byte(body), &told); err != nil || status != one.status || told.Error != one.code || told.Message == "" {
				t.Fatal(status, body)
			}
		})
	}
}

func TestAFullDiskIsNamedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	d := asFirst(t)
	folder := t.TempDir()
	if got := d.shell("mount -t tmpfs -o size=1m none " + folder); got.last.Code != 0 {
		t.Skip("no mounts here: ", got)
	}
	large := io.LimitReader(zeros{}, 8<<20)
	if status, body := d.call("PUT", "/v1/file?path="+folder+"/x", large); status != 507 || !strings.Contains(body, "disk_full") {
		t.Fatal(status, body)
	}
	if got := d.exec(map[string]any{"command": []string{"ls", "-A", folder}}); len(got.out) > 0 {
		t.Fatal(got)
	}
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	if err := writer.WriteHeader(&tar.Header{Name: "x", Mode: 0o644, Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.CopyN(writer, zeros{}, 8<<20)
	writer.Close()
	if status, body := d.call("PUT", "/v1/files?path="+folder, &archive); status != 507 || !strings.Contains(body, "disk_full") {
		t.Fatal(status, body)
	}
}

func TestPortsAreForwarded(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	inside := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		fmt.Fprintf(response, "%s %s token:%q", request.Method, request.RequestURI, request.Header.Get("Authorization"))
	}))
	defer inside.Close()
	port := inside.URL[strings.LastIndex(inside.URL, ":")+1:]
	for given, want := range map[string]string{
		"":               "POST / token:\"\"",
		"/":              "POST / token:\"\"",
		"/a/b?c=d;e&f":   "POST /a/b?c=d;e&f token:\"\"",
		"//a/../b%2Fc/.": "POST //a/../b%2Fc/. token:\"\"",
	} {
		if status, body := d.call("POST", "/v1/ports/"+port+given, nil); status != 200 || body != want {
			t.Errorf("%q: %d %s", given, status, body)
		}
	}
	inside.Close()
	if status, body := d.call("GET", "/v1/ports/"+port+"/", nil); status != 502 || !strings.Contains(body, "port_failed") {
		t.Error(status, body)
	}
	for _, wrong := range []string{"0", "65536", "ssh", ""} {
		if status, body := d.call("GET", "/v1/ports/"+wrong+"/", nil); status != 400 {
			t.Error(wrong, status, body)
		}
	}
}

func TestConnectionsThatChangeTheirProtocolAreForwarded(t *testing.T) {
	t.Parallel()
	d := asAny(t)
	inside := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		connection, stream, err := response.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer connection.Close()
		fmt.Fprintf(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", request.Header.Get("Upgrade"))
		stream.Flush()
		word, _ := stream.ReadString('\n')
		fmt.Fprintf(stream, "echo %s", word)
		stream.Flush()
	}))
	defer inside.Close()
	port := inside.URL[strings.LastIndex(inside.URL, ":")+1:]
	connection, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	fmt.Fprintf(connection, "GET /v1/ports/%s/chat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", port, token)
	reader := bufio.NewReader(connection)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != 101 {
		t.Fatal(response, err)
	}
	fmt.Fprint(connection, "word\n")
	if said, err := reader.ReadString('\n'); err != nil || said != "echo word\n" {
		t.Fatal(said, err)
	}
}

func TestInstallCopiesTheProgram(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for range 2 {
		if err := install(folder); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(folder, programName))
	self, selfError := os.Stat(os.Args[0])
	if err != nil || selfError != nil || info.Mode() != 0o755 || info.Size() != self.Size() {
		t.Fatal(info, err)
	}
	if err := install(filepath.Join(folder, "missing")); err == nil {
		t.Fatal("a missing folder was no error")
	}
}

type zeros struct{}

func (zeros) Read(buffer []byte) (int, error) {
	for index := range buffer {
		buffer[index] = 'x'
	}
	return len(buffer), nil
}
