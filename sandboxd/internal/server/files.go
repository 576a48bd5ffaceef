package server

import (
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"

	"gymtrain.dev/sandboxd/internal/files"
	"gymtrain.dev/sandboxd/internal/users"
)

const (
	// stalled is how long a transfer may make no progress.
	stalled = 60 * time.Second
	// listening is how long, and for how many bytes, a caller that still sends is listened to, so that it comes to read
	// the error.
	listening      = 10 * time.Second
	listeningBytes = 256 << 20
	defaultMode    = 0o644
)

// transfer waits for a place, and answers errors.
func (s *Server) transfer(do func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		select {
		case s.transfers <- struct{}{}:
			defer func() { <-s.transfers }()
		case <-request.Context().Done():
			return
		}
		if request.URL.Query().Get("path") == "" {
			badRequest("name the path: ?path=/some/where").send(response)
			return
		}
		control := http.NewResponseController(response)
		request.Body = &patient{request.Body, control}
		if err := do(response, request); err != nil {
			_ = control.EnableFullDuplex()
			response.Header().Set("Connection", "close")
			explain(err).send(response)
			_ = control.Flush()
			_ = control.SetReadDeadline(time.Now().Add(listening))
			_, _ = io.CopyN(io.Discard, request.Body.(*patient).ReadCloser, listeningBytes)
		}
	}
}

// patient is a body that may take as long as it likes, while some of it comes.
type patient struct {
	io.ReadCloser
	control *http.ResponseController
}

func (p *patient) Read(buffer []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(stalled))
	return p.ReadCloser.Read(buffer)
}

// brisk is an answer that must be read while it is written.
type brisk struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (b brisk) Write(data []byte) (int, error) {
	_ = b.control.SetWriteDeadline(time.Now().Add(stalled))
	return b.ResponseWriter.Write(data)
}

func newBrisk(response http.ResponseWriter) brisk {
	return brisk{response, http.NewResponseController(response)}
}

func (s *Server) unpack(response http.ResponseWriter, request *http.Request) error {
	owner, err := ownerOf(request)
	if err != nil {
		return err
	}
	count, err := files.Unpack(request.Body, request.URL.Query().Get("path"), owner)
	if err != nil {
		return err
	}
	answer(response, http.StatusOK, count)
	return nil
}

func (s *Server) pack(response http.ResponseWriter, request *http.Request) error {
	archive, err := files.Open(request.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	defer archive.Close()
	response.Header().Set("Content-Type", "application/x-tar")
	if err := archive.Pack(newBrisk(response)); err != nil {
		// Too late for a status: the broken connection tells the caller that this is not all.
		log.Printf("packing %s: %v", request.URL.Query().Get("path"), err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (s *Server) write(response http.ResponseWriter, request *http.Request) error {
	query := request.URL.Query()
	owner, err := ownerOf(request)
	if err != nil {
		return err
	}
	mode := uint64(defaultMode)
	if text := query.Get("mode"); text != "" {
		if mode, err = strconv.ParseUint(text, 8, 12); err != nil {
			badRequest("mode is " + strconv.Quote(text) + ": write it in octal, like 0644").send(response)
			return nil
		}
	}
	written, err := files.Write(query.Get("path"), uint32(mode), owner, request.Body)
	if err != nil {
		return err
	}
	answer(response, http.StatusOK, map[string]int64{"bytes": written})
	return nil
}

func (s *Server) read(response http.ResponseWriter, request *http.Request) error {
	file, info, err := files.Read(request.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	defer file.Close()
	response.Header().Set("Content-Type", "application/octet-stream")
	if info.Size() == 0 {
		// The files of /proc say so too, and have content.
		_, _ = io.Copy(newBrisk(response), file)
		return nil
	}
	http.ServeContent(newBrisk(response), request, "", time.Time{}, file)
	return nil
}

// ownerOf is to whom new files belong: whom the caller names, else whoever the daemon is.
func ownerOf(request *http.Request) (files.Owner, error) {
	name := request.URL.Query().Get("user")
	if name == "" {
		return files.Owner{}, nil
	}
	user, err := users.Find("/etc", name)
	if err != nil {
		return files.Owner{}, users.NotPermitted{Text: err.Error()}
	}
	credential, err := user.Credential()
	if err != nil || credential == nil {
		return files.Owner{}, err
	}
	return files.Owner{UID: int(user.UID), GID: int(user.GID), Set: os.Geteuid() == 0}, nil
}
