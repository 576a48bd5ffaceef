package server

import (
	"context"
	"errors"
	"net/http"

	"gymtrain.dev/sandboxd/internal/execs"
)

// mostRequest bounds an exec's body: commands, environment and input together.
const mostRequest = 8 << 20

func (s *Server) exec(response http.ResponseWriter, request *http.Request) {
	wanted, err := execs.Parse(http.MaxBytesReader(response, request.Body, mostRequest))
	if err != nil {
		if told := explain(err); told.Status != http.StatusInternalServerError {
			told.send(response)
			return
		}
		badRequest(err.Error()).send(response)
		return
	}
	err = s.Runner.Run(request.Context(), wanted, response)
	if err != nil && !errors.Is(err, context.Canceled) {
		explain(err).send(response)
	}
}
