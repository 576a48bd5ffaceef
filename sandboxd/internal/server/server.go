package server

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"gymtrain.dev/sandboxd/internal/execs"
)

// Options are what the interface stands on.
type Options struct {
	Version string
	// Token is the SHA-256 of the token that callers present.
	Token  [sha256.Size]byte
	Runner *execs.Runner
	// Reset takes the word that the sandbox is to be emptied.
	Reset chan<- struct{}
}

// Server answers the calls.
type Server struct {
	Options
	// instance is another one after each start, also where the token stays the same.
	instance string
	started  time.Time
	activity *activity
	routes   *http.ServeMux
	ports    http.Handler
	// transfers is how many files are read and written at once: each can hold a thread.
	transfers chan struct{}
	ending    atomic.Bool
}

const (
	mostTransfers  = 8
	instanceHeader = "Gymtrain-Sandbox-Instance"
)

// New makes the handler.
func New(options Options) *Server {
	server := &Server{
		Options:   options,
		instance:  rand.Text(),
		started:   time.Now(),
		activity:  newActivity(),
		routes:    http.NewServeMux(),
		ports:     newPorts(),
		transfers: make(chan struct{}, mostTransfers),
	}
	server.routes.HandleFunc("POST /v1/exec", server.exec)
	server.routes.HandleFunc("GET /v1/files", server.transfer(server.pack))
	server.routes.HandleFunc("PUT /v1/files", server.transfer(server.unpack))
	server.routes.HandleFunc("GET /v1/file", server.transfer(server.read))
	server.routes.HandleFunc("PUT /v1/file", server.transfer(server.write))
	server.routes.HandleFunc("POST /v1/reach", server.reach)
	server.routes.HandleFunc("POST /v1/reset", server.reset)
	server.routes.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		problem{http.StatusNotFound, "no_such_call", request.Method + " " + request.URL.Path +
			": see the README of sandboxd for the calls there are"}.send(response)
	})
	return server
}

// ServeHTTP checks the token and for whom the call is, and keeps account of use.
func (s *Server) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	// An earlier call on this connection may have left one.
	_ = http.NewResponseController(response).SetWriteDeadline(time.Time{})
	if s.ending.Load() {
		problem{http.StatusServiceUnavailable, "resetting", "the sandbox is being reset: ask for another one"}.send(response)
		return
	}
	if request.URL.Path == "/healthz" {
		answer(response, http.StatusOK, map[string]string{
			"version": s.Version, "startedAt": s.startedAt(), "instance": s.instance,
		})
		return
	}
	if !s.authorised(request) {
		response.Header().Set("WWW-Authenticate", "Bearer")
		problem{http.StatusUnauthorized, "unauthorized", "send the sandbox's token: Authorization: Bearer TOKEN"}.send(response)
		return
	}
	if meant := request.Header.Get(instanceHeader); meant != "" && meant != s.instance {
		problem{http.StatusGone, "other_instance",
			"the sandbox that this call is for has ended, and all it held is gone: this is a new one in its place"}.send(response)
		return
	}
	if request.Method == http.MethodGet && request.URL.Path == "/v1/status" {
		s.status(response)
		return
	}
	s.activity.begin()
	defer s.activity.end()
	// Not by the routes: they would redirect paths that the forwarded server may take as they are.
	if strings.HasPrefix(request.URL.Path, portsPrefix) {
		s.ports.ServeHTTP(response, request)
		return
	}
	s.routes.ServeHTTP(response, request)
}

func (s *Server) authorised(request *http.Request) bool {
	scheme, token, _ := strings.Cut(request.Header.Get("Authorization"), " ")
	digest := sha256.Sum256([]byte(token))
	return strings.EqualFold(scheme, "bearer") && subtle.ConstantTimeCompare(digest[:], s.Token[:]) == 1
}

func (s *Server) startedAt() string {
	return s.started.UTC().Format(time.RFC3339)
}

func (s *Server) status(response http.ResponseWriter) {
	answer(response, http.StatusOK, map[string]any{
		"version":     s.Version,
		"startedAt":   s.startedAt(),
		"idleSeconds": s.activity.idle().Seconds(),
		"execs":       s.Runner.Running(),
	})
}

// reset answers before everything ends, its own process included.
func (s *Server) reset(response http.ResponseWriter, _ *http.Request) {
	s.ending.Store(true)
	response.Header().Set("Connection", "close")
	answer(response, http.StatusAccepted, map[string]string{"state": "resetting"})
	_ = http.NewResponseController(response).Flush()
	select {
	case s.Reset <- struct{}{}:
	default:
	}
}
