// Package server is the daemon's HTTP interface.
package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"syscall"

	"gymtrain.dev/sandboxd/internal/execs"
	"gymtrain.dev/sandboxd/internal/files"
	"gymtrain.dev/sandboxd/internal/users"
)

// problem is an error as callers see it.
type problem struct {
	Status  int    `json:"-"`
	Code    string `json:"error"`
	Message string `json:"message"`
}

func (p problem) send(response http.ResponseWriter) {
	answer(response, p.Status, p)
}

func answer(response http.ResponseWriter, status int, document any) {
	text, err := json.Marshal(document)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":"internal","message":"the answer can't be written as JSON"}`)
	}
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_, _ = response.Write(append(text, '\n'))
}

func badRequest(message string) problem {
	return problem{http.StatusBadRequest, "bad_request", message}
}

// kinds says what errors of files and calls mean to a caller. The first that fits counts.
var kinds = []struct {
	errors []error
	status int
	code   string
	fix    string
}{
	{[]error{syscall.ENOSPC, syscall.EDQUOT}, http.StatusInsufficientStorage, "disk_full",
		"remove files, or raise the sandbox's ephemeral-storage limit"},
	{[]error{syscall.EFBIG}, http.StatusRequestEntityTooLarge, "too_large", "the file system takes no file of this size"},
	{[]error{syscall.EROFS}, http.StatusForbidden, "read_only", "choose a path on a file system that can be written"},
	{[]error{files.ErrOutside}, http.StatusForbidden, "outside", "entries must stay below the folder, links included"},
	{[]error{fs.ErrPermission}, http.StatusForbidden, "permission", "the sandbox's user may not; choose another path"},
	{[]error{fs.ErrNotExist}, http.StatusNotFound, "not_found", "there is nothing at this path"},
	{[]error{syscall.ENOTDIR}, http.StatusNotFound, "not_a_folder", "a part of the path is no folder"},
	{[]error{files.ErrTar}, http.StatusBadRequest, "bad_tar", "send an uncompressed tar stream, whole"},
	{[]error{files.ErrEntry}, http.StatusBadRequest, "bad_entry", "leave it out of the archive, or move what is in its way"},
	{[]error{files.ErrNotRegular}, http.StatusBadRequest, "not_a_file", "use /v1/files for folders"},
	{[]error{syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EINVAL, syscall.EISDIR}, http.StatusBadRequest, "bad_path",
		"the path can't be used"},
	{[]error{syscall.EBUSY, syscall.EXDEV}, http.StatusConflict, "busy", "it is a mount of its own; choose another path"},
	{[]error{execs.ErrNoShell}, http.StatusUnprocessableEntity, "no_shell", ""},
	{[]error{execs.ErrTooMany}, http.StatusTooManyRequests, "too_many", ""},
	{[]error{syscall.EMFILE, syscall.ENFILE}, http.StatusServiceUnavailable, "too_many_files", "end commands that run in the background"},
}

// explain finds the caller's view of an error.
func explain(err error) problem {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return problem{http.StatusRequestEntityTooLarge, "too_large",
			fmt.Sprintf("the body is longer than %d bytes: upload large input as a file", tooLarge.Limit)}
	}
	var notPermitted users.NotPermitted
	if errors.As(err, &notPermitted) {
		return problem{http.StatusForbidden, "bad_user", err.Error()}
	}
	for _, kind := range kinds {
		for _, one := range kind.errors {
			if errors.Is(err, one) {
				return problem{kind.status, kind.code, join(err.Error(), kind.fix)}
			}
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return problem{http.StatusRequestTimeout, "timeout", "the body stopped coming; send it again"}
	}
	return problem{http.StatusInternalServerError, "internal", err.Error()}
}

func join(what, fix string) string {
	if fix == "" {
		return what
	}
	return what + ": " + fix
}
