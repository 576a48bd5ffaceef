package server

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const portsPrefix = "/v1/ports/"

// ports forwards calls, websockets included, to servers on the sandbox's loopback address.
type ports struct{ proxy *httputil.ReverseProxy }

func newPorts() *ports {
	return &ports{&httputil.ReverseProxy{
		Rewrite: rewrite,
		// Proxies of the sandbox's own environment are not for its own ports.
		Transport: &http.Transport{
			Proxy:               nil,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			DisableCompression:  true,
			MaxIdleConnsPerHost: 8,
			IdleConnTimeout:     30 * time.Second,
		},
		FlushInterval: -1,
		ErrorLog:      log.New(quiet{}, "", 0),
		ErrorHandler: func(response http.ResponseWriter, request *http.Request, err error) {
			port, _, _ := split(request.URL.EscapedPath())
			problem{http.StatusBadGateway, "port_failed",
				fmt.Sprintf("port %d in the sandbox: %v; is its server running, and on 127.0.0.1?", port, err)}.send(response)
		},
	}}
}

func (p *ports) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if _, _, err := split(request.URL.EscapedPath()); err != nil {
		badRequest(err.Error()).send(response)
		return
	}
	p.proxy.ServeHTTP(response, request)
}

// rewrite leaves the call as it came but for its place and the token, which is not for the sandbox's code.
func rewrite(call *httputil.ProxyRequest) {
	port, path, _ := split(call.In.URL.EscapedPath())
	host := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	decoded, err := url.PathUnescape(path)
	if err != nil {
		decoded = path
	}
	call.Out.URL = &url.URL{Scheme: "http", Host: host, Path: decoded, RawPath: path, RawQuery: call.In.URL.RawQuery}
	call.Out.Host = host
	call.Out.Header.Del("Authorization")
	call.Out.Header.Del(instanceHeader)
}

// split takes /v1/ports/8080/a/b apart.
func split(path string) (port int, rest string, err error) {
	number, rest, _ := strings.Cut(strings.TrimPrefix(path, portsPrefix), "/")
	port, err = strconv.Atoi(number)
	if err != nil || port < 1 || port > 65535 {
		return 0, "", fmt.Errorf("%q is no port: call %sPORT/PATH with a number from 1 to 65535", number, portsPrefix)
	}
	return port, "/" + rest, nil
}

// quiet drops what the proxy would log: callers get it as an answer.
type quiet struct{}

func (quiet) Write(text []byte) (int, error) { return len(text), nil }
