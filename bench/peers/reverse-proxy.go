// Go's own reverse proxy, with as many persistent connections as clients: reverse-proxy LISTEN UPSTREAM
package main

import (
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"
)

func main() {
	target := &url.URL{Scheme: "http", Host: os.Args[2]}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(target)
			request.SetXForwarded()
			request.Out.Host = request.In.Host
		},
		Transport: &http.Transport{
			MaxIdleConns:        4096,
			MaxIdleConnsPerHost: 4096,
			IdleConnTimeout:     time.Hour,
			DisableCompression:  true,
		},
	}
	log.Fatal(http.ListenAndServe(os.Args[1], proxy))
}
