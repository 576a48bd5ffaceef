// Package execs runs commands and tells their callers what becomes of them.
package execs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// longest bounds timeouts: beyond it there is no difference to none.
const longest = 30 * 24 * time.Hour

// Request is the body of an exec call.
type Request struct {
	Command        []string          `json:"command"`
	Shell          string            `json:"shell"`
	Cwd            string            `json:"cwd"`
	Env            map[string]string `json:"env"`
	User           string            `json:"user"`
	TimeoutSeconds *float64          `json:"timeoutSeconds"`
	Stdin          []byte            `json:"stdin"`
	MaxOutputBytes *int              `json:"maxOutputBytes"`
}

// Parse reads and checks a request.
func Parse(body io.Reader) (Request, error) {
	var request Request
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		return request, fmt.Errorf("the body isn't an exec request: %w", err)
	}
	if decoder.More() {
		return request, errors.New("the body holds more than one exec request")
	}
	return request, request.check()
}

func (r Request) check() error {
	switch {
	case (len(r.Command) > 0) == (r.Shell != ""):
		return errors.New("give either command, a list of strings, or shell, a text for the image's shell")
	case len(r.Command) > 0 && r.Command[0] == "":
		return errors.New("command[0], the program, is empty")
	case r.TimeoutSeconds != nil && *r.TimeoutSeconds <= 0:
		return errors.New("timeoutSeconds must be more than 0; leave it out for none")
	case r.MaxOutputBytes != nil && *r.MaxOutputBytes < 0:
		return errors.New("maxOutputBytes can't be negative; leave it out for the sandbox's limit")
	}
	for name, value := range r.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("env: %q is no name and value that a process can have", name)
		}
	}
	for _, text := range append([]string{r.Shell, r.Cwd, r.User}, r.Command...) {
		if strings.Contains(text, "\x00") {
			return errors.New("command, shell, cwd and user can't hold a zero byte")
		}
	}
	return nil
}

// timeout is how long the command may take, 0 for as long as it likes.
func (r Request) timeout() time.Duration {
	if r.TimeoutSeconds == nil || *r.TimeoutSeconds >= longest.Seconds() {
		return 0
	}
	return max(time.Duration(*r.TimeoutSeconds*float64(time.Second)), time.Millisecond)
}

func (r Request) outputLimit(most int) int {
	if r.MaxOutputBytes == nil {
		return most
	}
	return min(*r.MaxOutputBytes, most)
}
