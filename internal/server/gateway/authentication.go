package gateway

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/internal/podidentity"
)

type identityKey struct{}

// identityOf is the caller that authentication put into the context.
func identityOf(ctx context.Context) podidentity.Identity {
	id, _ := ctx.Value(identityKey{}).(podidentity.Identity)
	return id
}

// authentication lets through only callers that are the pod of a task.
type authentication struct{ gateway *Gateway }

func (a authentication) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, err := a.authenticate(ctx, req.Header())
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

func (a authentication) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, err := a.authenticate(ctx, conn.RequestHeader())
		if err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

func (a authentication) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (a authentication) authenticate(ctx context.Context, header http.Header) (context.Context, error) {
	scheme, token, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	id, err := a.gateway.authenticator.Verify(ctx, strings.TrimSpace(token))
	if err != nil {
		return ctx, a.gateway.failure(ctx, err)
	}
	return context.WithValue(ctx, identityKey{}, id), nil
}
