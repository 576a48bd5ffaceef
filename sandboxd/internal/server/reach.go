package server

import (
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	mostAddresses    = 8
	mostReachSeconds = 10
	mostReachRequest = 4096
)

// reach says which addresses take a connection from inside the sandbox: none, where its network is closed. Whoever is to
// lease it asks first, as a network plugin may take a moment to close a new pod's network.
func (s *Server) reach(response http.ResponseWriter, request *http.Request) {
	var wanted struct {
		Addresses []string `json:"addresses"`
		Seconds   float64  `json:"seconds"`
	}
	body := http.MaxBytesReader(response, request.Body, mostReachRequest)
	if err := json.NewDecoder(body).Decode(&wanted); err != nil {
		badRequest("the body must be {\"addresses\": [HOST:PORT], \"seconds\": NUMBER}: " + err.Error()).send(response)
		return
	}
	if len(wanted.Addresses) > mostAddresses || wanted.Seconds <= 0 || wanted.Seconds > mostReachSeconds {
		badRequest("addresses may be at most 8, and seconds above 0 and at most 10").send(response)
		return
	}
	dialer := net.Dialer{Timeout: time.Duration(wanted.Seconds * float64(time.Second))}
	taken := make([]bool, len(wanted.Addresses))
	var dials sync.WaitGroup
	for index, address := range wanted.Addresses {
		dials.Add(1)
		go func() {
			defer dials.Done()
			if connection, err := dialer.DialContext(request.Context(), "tcp", address); err == nil {
				connection.Close()
				taken[index] = true
			}
		}()
	}
	dials.Wait()
	reached := []string{}
	for index, address := range wanted.Addresses {
		if taken[index] {
			reached = append(reached, address)
		}
	}
	answer(response, http.StatusOK, map[string]any{"reached": reached})
}
