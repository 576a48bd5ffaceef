// Package actionscache has what BuildKit's cache in GitHub Actions names of its client: the development cluster caches
// nothing there.
package actionscache

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

var errLeftOut = errors.New("left out of this build: the development cluster caches nothing in GitHub Actions")

// Log is not called.
var Log = func(string, ...any) {}

// PermissionWrite is the one that is named.
const PermissionWrite Permission = 2

// Permission is what a scope allows.
type Permission int

// Scope is a part of a cache.
type Scope struct {
	Scope      string
	Permission Permission
}

// Opt is not looked at.
type Opt struct {
	Client    *http.Client
	Timeout   time.Duration
	UserAgent string
}

// Cache is never made.
type Cache struct{}

// RestAPI is never made.
type RestAPI struct{}

// Entry is never made.
type Entry struct{}

// ReaderAtCloser reads at an offset.
type ReaderAtCloser interface {
	io.ReaderAt
	io.Closer
}

// Blob is what would be saved.
type Blob interface {
	ReaderAtCloser
	Size() int64
}

// New fails, and with it every cache in GitHub Actions.
func New(string, string, bool, Opt) (*Cache, error) { return nil, errLeftOut }

// NewRestAPI fails.
func NewRestAPI(string, string, Opt) (*RestAPI, error) { return nil, errLeftOut }

// NewBlob returns what can't be read.
func NewBlob([]byte) Blob { return unreadable{} }

// AllKeys fails.
func (*Cache) AllKeys(context.Context, *RestAPI, string) (map[string]struct{}, error) {
	return nil, errLeftOut
}

// Load fails: nothing is found, and nothing is said to be missing.
func (*Cache) Load(context.Context, ...string) (*Entry, error) { return nil, errLeftOut }

// Save fails.
func (*Cache) Save(context.Context, string, Blob) error { return errLeftOut }

// SaveMutable fails.
func (*Cache) SaveMutable(context.Context, string, time.Duration, func(*Entry) (Blob, error)) error {
	return errLeftOut
}

// Scopes returns none.
func (*Cache) Scopes() []Scope { return nil }

// Download returns what can't be read.
func (*Entry) Download(context.Context) ReaderAtCloser { return unreadable{} }

// WriteTo fails.
func (*Entry) WriteTo(context.Context, io.Writer) error { return errLeftOut }

type unreadable struct{}

func (unreadable) Close() error { return errLeftOut }

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errLeftOut }

func (unreadable) Size() int64 { return 0 }
