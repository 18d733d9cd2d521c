// Two vendors, by one endpoint, and a till.

import { openEndpoints } from "../endpoints.mjs";
import { read, write } from "../exact.mjs";

const TOTALS = { nordschraube: "1249.00", sudviti: "1070.50" };

const WORKS = {
  "vendors.quote": ({ vendor, part, quantity }) => ({ vendor, total: read(TOTALS[vendor]), currency: "EUR", part, quantity }),
  "payments.charge": ({ order_id, ...rest }) => ({ receipt: `rcp-${write(order_id)}`, ...rest }),
};

export const openPartners = ({ key }) => openEndpoints({ key, works: WORKS, subject: ({ order_id }) => write(order_id) });
